"""Decode steps as CUDA graphs: the layers of a batch size are captured once and replayed, so that a
step costs one launch instead of hundreds.

A step is padded to the next size. Rows of padding write and read the pool's padding page alone,
which no request has. Knows neither requests nor what attention plans; sampling is not captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.graph_sizes import batch_for
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.flashinfer_graphs import GraphWrapper
from sluice_runtime.layers.token_layout import RowNumbers, TokenLayout

Replay = Callable[[], None]
"""Computes again what was captured, from what the same tensors hold now."""
Capture = Callable[[Callable[[], None]], Replay]


class Forward(Protocol):
    """`model.decoder.Decoder.hidden`."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, pool: PagePool, layout: TokenLayout
    ) -> Tensor: ...


@dataclass(frozen=True)
class GraphInputs:
    """Tensors that graphs read and write: [rows of the largest], and [the same, hidden size]."""

    token_ids: Tensor
    positions: Tensor
    pages: Tensor
    offsets: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class _Graph:
    wrapper: GraphWrapper
    replay: Replay


class DecodeGraphs:
    """The graphs of an engine."""

    def __init__(self, pool: PagePool, hidden_size: int, batches: tuple[int, ...]) -> None:
        """`batches`: ascending, one at least."""
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
        self, forward: Forward, wrapper_of: Callable[[int], GraphWrapper], capture: Capture
    ) -> None:
        """The largest first: smaller ones use its memory again."""
        for batch in reversed(self._batches):
            wrapper = wrapper_of(batch)
            wrapper.plan(None)
            self._graphs[batch] = _Graph(wrapper, capture(self._step(forward, wrapper)))

    def hidden(self, token_ids: Tensor, positions: Tensor, layout: TokenLayout) -> Tensor | None:
        """token_ids, positions [n] → [n, h], valid until the next call; None: no graph serves this
        step, since rows extend, or there are too many."""
        rows = len(token_ids)
        batch = None if layout.extends else batch_for(rows, self._batches)
        if batch is None or not (graph := self._graphs[batch]).wrapper.holds(layout):
            return None
        inputs = self._inputs
        inputs.token_ids[:rows].copy_(token_ids)
        inputs.positions[:rows].copy_(positions)
        inputs.pages[:rows].copy_(layout.pages)
        inputs.offsets[:rows].copy_(layout.offsets)
        # What a larger step left: tokens and positions do no harm, pages would.
        inputs.pages[rows:batch].fill_(self._pool.padding_page)
        graph.wrapper.plan(layout)
        graph.replay()
        self.replays += 1
        return inputs.hidden[:rows]

    def _step(self, forward: Forward, wrapper: GraphWrapper) -> Callable[[], None]:
        inputs, batch = self._inputs, wrapper.batch
        layout = _layout(inputs, wrapper)

        def step() -> None:
            hidden = forward(inputs.token_ids[:batch], inputs.positions[:batch], self._pool, layout)
            inputs.hidden[:batch].copy_(hidden)

        return step


def _layout(inputs: GraphInputs, wrapper: GraphWrapper) -> TokenLayout:
    """Rows of one token. Where their contexts lie is in the wrapper's plan, so the rest of it is
    only well formed."""
    rows = np.arange(wrapper.batch + 1)
    numbers = RowNumbers(rows[:-1], rows, np.ones_like(rows[:-1]))
    begins = torch.from_numpy(rows).to(inputs.pages.device)
    return TokenLayout(
        pages=inputs.pages[: wrapper.batch],
        offsets=inputs.offsets[: wrapper.batch],
        page_table=inputs.pages[: wrapper.batch, None],
        rows=begins[:-1],
        begins=begins,
        contexts=torch.ones_like(begins[:-1]),
        extends=0,
        numbers=numbers,
        planned=wrapper,
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
