"""Runs steps as CUDA graphs: the layers are captured once for each batch size and replayed, so that
a step costs one launch instead of hundreds.

Graphs are captured for rows of one token. So they serve decode rows, and also tokens of prompts and
verified rows, each as a row of its own, if these fit and their contexts, then read once for each
token, are short enough.

A graph computes exactly the rows that it was captured with, so a step is padded to the next larger
graph. Padding rows write and read only the pool's padding page, which no request has. Sampling is
not captured. Knows neither requests nor how attention is planned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import GraphAttention, RowNumbers, TokenLayout

Replay = Callable[[], None]
"""Function that computes a captured step again, from the present content of its tensors."""
Capture = Callable[[Callable[[], None]], Replay]
AGAIN_BYTES: Final = 8 << 30
"""Most bytes of keys and values that a step may read again so that a graph can serve it. Reading
them takes 2 ms on an H200; launching a step of Llama-3-8B's shape without a graph takes 13 ms
there."""
_SMALL: Final = (1, 2, 4, 8, 12)
_SPANS: Final = ((16, 256, 8), (272, 496, 16), (512, 4096, 32))
"""(first, last, distance) of captured batch sizes. Padding costs at most a third of a step up to 16
rows, and 6 % from 256."""


def graph_batches(largest: int) -> tuple[int, ...]:
    """Batch sizes to capture, ascending; the last is `largest`, so that every batch has a graph."""
    if largest < 1:
        return ()
    usual = (*_SMALL, *(size for a, b, apart in _SPANS for size in range(a, b + 1, apart)))
    return (*(size for size in usual if size < largest), largest)


def batch_for(rows: int, batches: Sequence[int]) -> int | None:
    """The smallest of the ascending `batches` that holds `rows` rows; None: all are too small."""
    at = bisect_left(batches, rows)
    return batches[at] if rows and at < len(batches) else None


class Forward(Protocol):
    """Signature of `model.decoder.Decoder.hidden`."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, pool: PagePool, layout: TokenLayout
    ) -> Tensor: ...


@dataclass(frozen=True)
class GraphInputs:
    """Tensors that graphs read and write: [rows of the largest], `hidden` [rows, hidden size]."""

    token_ids: Tensor
    positions: Tensor
    pages: Tensor
    offsets: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class _Graph:
    attention: GraphAttention
    replay: Replay


class DecodeGraphs:
    """All graphs of an engine, by batch size."""

    def __init__(self, pool: PagePool, hidden_size: int, batches: tuple[int, ...]) -> None:
        """`batches`: batch sizes, ascending, one at least."""
        self._pool = pool
        self._batches = batches
        self._graphs: dict[int, _Graph] = {}
        self.replays = 0
        """Steps that were computed by a graph."""
        place, rows = pool.data.device, batches[-1]

        def whole(value: int) -> Tensor:
            return torch.full((rows,), value, dtype=torch.int64, device=place)

        hidden = torch.zeros((rows, hidden_size), dtype=pool.shape.dtype, device=place)
        self._inputs = GraphInputs(whole(0), whole(0), whole(pool.padding_page), whole(0), hidden)

    @torch.inference_mode()
    def capture(
        self, forward: Forward, attention_of: Callable[[int], GraphAttention], capture: Capture
    ) -> None:
        """Captures all graphs, the largest first, because smaller ones reuse its memory."""
        for batch in reversed(self._batches):
            attention = attention_of(batch)
            attention.plan(None)
            self._graphs[batch] = _Graph(attention, capture(self._step(forward, attention)))

    def hidden(self, token_ids: Tensor, positions: Tensor, layout: TokenLayout) -> Tensor | None:
        """Hidden states for token_ids, positions [n] → [n, h], valid until the next call. None: no
        graph serves the step, because it has too many tokens or too long contexts."""
        rows = len(token_ids)
        batch = batch_for(rows, self._batches)
        if batch is None or (layout.extends and self._reads_again(layout) > AGAIN_BYTES):
            return None
        if layout.extends:
            layout = layout.of_single_tokens()
        if not (graph := self._graphs[batch]).attention.holds(layout):
            return None
        inputs = self._inputs
        inputs.token_ids[:rows].copy_(token_ids)
        inputs.positions[:rows].copy_(positions)
        inputs.pages[:rows].copy_(layout.pages)
        inputs.offsets[:rows].copy_(layout.offsets)
        # Padding rows still hold a larger step's inputs. Old tokens and positions are harmless; old
        # pages would be written.
        inputs.pages[rows:batch].fill_(self._pool.padding_page)
        graph.attention.plan(layout)
        graph.replay()
        self.replays += 1
        return inputs.hidden[:rows]

    def _reads_again(self, layout: TokenLayout) -> int:
        """Bytes that rows of several tokens read again if each token becomes a row."""
        numbers = layout.numbers
        counts = np.diff(numbers.begins)
        again = ((counts - 1) * numbers.contexts - counts * (counts - 1) // 2).sum()
        return int(again) * self._pool.shape.bytes_per_token

    def _step(self, forward: Forward, attention: GraphAttention) -> Callable[[], None]:
        inputs, batch = self._inputs, attention.batch
        layout = _layout(inputs, attention)

        def step() -> None:
            hidden = forward(inputs.token_ids[:batch], inputs.positions[:batch], self._pool, layout)
            inputs.hidden[:batch].copy_(hidden)

        return step


def _layout(inputs: GraphInputs, attention: GraphAttention) -> TokenLayout:
    """Layout for rows of one token. The attention's plan locates their contexts, so the other
    fields are placeholders of valid form."""
    rows = np.arange(attention.batch + 1)
    numbers = RowNumbers(rows[:-1], rows, np.ones_like(rows[:-1]))
    begins = torch.from_numpy(rows).to(inputs.pages.device)
    return TokenLayout(
        pages=inputs.pages[: attention.batch],
        offsets=inputs.offsets[: attention.batch],
        page_table=inputs.pages[: attention.batch, None],
        rows=begins[:-1],
        begins=begins,
        contexts=torch.ones_like(begins[:-1]),
        extends=0,
        numbers=numbers,
        planned=attention,
    )


class CudaCapture:
    """Captures CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._memory: Any = None

    def __call__(self, step: Callable[[], None]) -> Replay:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            # In a first run libraries load kernels and allocate workspaces, which cannot be
            # captured.
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA meanwhile, as NCCL's watchdog does to query events.
        with torch.cuda.graph(
            graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
        ):
            step()
        self._memory = graph.pool()
        return graph.replay
