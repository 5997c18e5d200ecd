"""Steps as CUDA graphs: the layers of a number of rows are captured once and replayed, so that a
step costs one launch instead of hundreds.

Captured are rows of one token. So a step serves its decode rows, and as many tokens of prompts and
of verified rows as fit, where the contexts that these read once each are short enough.

A graph computes exactly the rows that it was captured with, so a step takes the next larger one and
is padded. Rows of padding write and read the pool's padding page alone, which no request has. Knows
neither requests nor what attention plans; sampling is not captured.
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
"""Computes what was captured once more, from the present content of the same tensors."""
Capture = Callable[[Callable[[], None]], Replay]
AGAIN_BYTES: Final = 8 << 30
"""Maximum bytes of keys and values that a step may read more than once in order to be a graph. They
take 2 ms on an H200, where launching a step of Llama-3-8B's shape without a graph takes 13 ms."""
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
    """The smallest of the ascending `batches` that holds so many rows."""
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
        """Captures all graphs, the largest first: smaller ones use its memory again."""
        for batch in reversed(self._batches):
            attention = attention_of(batch)
            attention.plan(None)
            self._graphs[batch] = _Graph(attention, capture(self._step(forward, attention)))

    def hidden(self, token_ids: Tensor, positions: Tensor, layout: TokenLayout) -> Tensor | None:
        """Hidden states for token_ids, positions [n] → [n, h], valid until the next call. None: no
        graph serves this step, since it has too many tokens, or their contexts are too long."""
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
        # What a larger step left: tokens and positions do no harm, pages would.
        inputs.pages[rows:batch].fill_(self._pool.padding_page)
        graph.attention.plan(layout)
        graph.replay()
        self.replays += 1
        return inputs.hidden[:rows]

    def _reads_again(self, layout: TokenLayout) -> int:
        """Bytes that rows of several tokens read more than once if each token is a row."""
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
    """Layout for rows of one token. Their attention's plan says where their contexts lie, so the
    rest is only well formed."""
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
            # Libraries load kernels and take workspaces in a first run: that cannot be captured.
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Threads of libraries go on meanwhile: NCCL's watchdog asks for events.
        with torch.cuda.graph(
            graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
        ):
            step()
        self._memory = graph.pool()
        return graph.replay
