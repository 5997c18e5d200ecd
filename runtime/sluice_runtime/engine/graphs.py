"""Runs steps as CUDA graphs: the layers are captured once for each batch size and replayed, so that
a step costs one launch instead of hundreds. A second graph of each size has the last norm, the
head and the sampling of rows that ask for nothing else.

Graphs are captured for rows of one token. So they serve decode rows, and also tokens of prompts and
verified rows, each as a row of its own, if these fit and their contexts, then read once for each
token, are short enough.

A graph computes exactly the rows that it was captured with, so a step is padded to the next larger
graph. Padding rows write and read only the pool's padding page, which no request has. The host
sends the rows and their contexts in one copy; a kernel makes all other inputs of these. Knows
neither requests nor how attention is planned.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sluice_kernels.reference import DecodeTensors
from torch import Tensor

from sluice_runtime.engine.device import Device, HostNumbers
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import GraphAttention, GraphRows, RowNumbers, TokenLayout

Int32 = NDArray[np.int32]
Replay = Callable[[], None]
"""Function that computes a captured step again, from the present content of its tensors."""
Capture = Callable[[Callable[[], None]], Replay]
AGAIN_BYTES: Final = 8 << 30
"""Most bytes of keys and values that a step may read again so that a graph can serve it. Reading
them takes 2 ms on an H200; launching a step of Llama-3-8B's shape without a graph takes 13 ms
there."""
LISTED_PAGES: Final = 4
"""Most pages that a step's rows may list together, as a multiple of the pool's pages; more than the
pool, since rows share pages. A step with more runs without a graph."""
ALIGNED_NUMBERS: Final = 128
"""Columns begin at multiples of as many numbers: of 512 bytes, like tensors of their own."""
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


def first_batches(batches: Sequence[int]) -> tuple[int, ...]:
    """The `batches` to capture before an engine is ready: powers of two, and the last one. Until
    others are captured, a step is padded to at most twice its rows."""
    return tuple(size for size in batches if not size & (size - 1) or size == batches[-1])


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
class GraphParts:
    """What graphs are made of."""

    forward: Forward
    attention: Callable[[GraphRows], GraphAttention]
    decode_inputs: Callable[[DecodeTensors], None]
    sample: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    """Function: (hidden states [b, h], rows, positions of the tokens: [b] int32) → tokens [b]. It
    also stores the tokens as the rows' last ones. None: sampling cannot be captured."""


@dataclass(frozen=True)
class GraphInputs:
    """Tensors that graphs read and write: [rows of the largest], on the device."""

    token_ids: Tensor
    positions: Tensor
    pages: Tensor
    offsets: Tensor
    hidden: Tensor
    """[rows of the largest, hidden size]"""
    tokens: Tensor
    """Sampled tokens."""
    indices: Tensor
    """Pages of all rows, one row after the other."""


ColumnT = TypeVar("ColumnT", Int32, Tensor)


@dataclass(frozen=True)
class RowColumns(Generic[ColumnT]):
    """A step's rows of one token: int32, [rows of the largest] each. One copy carries all of them
    from the host to the device."""

    rows: ColumnT
    """Index of each row in the page table; the number of its rows for padding."""
    contexts: ColumnT
    last_page_len: ColumnT
    indptr: ColumnT
    """[rows of the largest + 1] row i's pages are [indptr[i], indptr[i + 1]) of all rows' pages."""

    @classmethod
    def views(cls, numbers: ColumnT, largest: int) -> RowColumns[ColumnT]:
        """Views of `numbers_of(largest)` numbers."""
        begins = range(0, len(numbers), _column_numbers(largest))
        rows, contexts, lengths, indptr = (numbers[begin : begin + largest + 1] for begin in begins)
        return cls(rows[:-1], contexts[:-1], lengths[:-1], indptr)


def numbers_of(largest: int) -> int:
    """Numbers that columns of `largest` rows take together."""
    return 4 * _column_numbers(largest)


def _column_numbers(largest: int) -> int:
    return -(-(largest + 1) // ALIGNED_NUMBERS) * ALIGNED_NUMBERS


@dataclass(frozen=True)
class _Graph:
    """A captured batch size; its tensors have that many rows."""

    rows: tuple[Tensor, Tensor, Tensor]
    """`rows`, `contexts` and `indptr` of the columns."""
    inputs: tuple[Tensor, Tensor, Tensor, Tensor]
    """`token_ids`, `positions`, `pages` and `offsets`."""
    attention: GraphAttention
    layers: Replay
    sampling: Replay | None


_NO_ROWS: Final = RowNumbers(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))


class _HostRows:
    """Columns on the host, which a step fills."""

    def __init__(self, numbers: HostNumbers, largest: int) -> None:
        self._columns = RowColumns.views(numbers.array, largest)
        self._tensors = RowColumns.views(numbers.tensor, largest)
        self._plans: dict[int, tuple[Tensor, Tensor]] = {}

    def fill(self, numbers: RowNumbers, batch: int, padding_row: int, page_size: int) -> int:
        """Fills in the rows of one token, and padding up to `batch` rows, each with one token.
        Returns how many pages they have together."""
        columns, rows = self._columns, len(numbers.rows)
        columns.rows[:rows], columns.rows[rows:batch] = numbers.rows, padding_row
        contexts = columns.contexts[:batch]
        contexts[:rows], contexts[rows:] = numbers.contexts, 1
        before = (contexts - 1) // page_size
        np.subtract(contexts, before * page_size, out=columns.last_page_len[:batch])
        np.cumsum(before + 1, out=columns.indptr[1 : batch + 1])
        return int(columns.indptr[batch])

    def plan(self, batch: int) -> tuple[Tensor, Tensor]:
        """`indptr` [batch + 1] and `last_page_len` [batch]."""
        if batch not in self._plans:
            tensors = self._tensors
            self._plans[batch] = tensors.indptr[: batch + 1], tensors.last_page_len[:batch]
        return self._plans[batch]


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step that a graph serves: its rows are in the host's buffer, and nothing has begun."""

    numbers: RowNumbers
    batch: int
    host: _HostRows


class DecodeGraphs:
    """The graphs of an engine, by batch size. A step is padded to the next one that is
    captured."""

    def __init__(
        self,
        pool: PagePool,
        hidden_size: int,
        batches: tuple[int, ...],
        device: Device,
        last_tokens: Tensor,
    ) -> None:
        """`batches`: batch sizes, ascending, one at least. `last_tokens`: last token of each row of
        the page table [rows + 1]; the last is of padding."""
        self._pool = pool
        self._batches = batches
        self._captured_batches: tuple[int, ...] = ()
        """Ascending, as are `_batches`."""
        self._given_up = False
        self._graphs: dict[int, _Graph] = {}
        self._last_tokens = last_tokens
        self._padding_row = len(last_tokens) - 1
        self.samples = False
        """Whether graphs sample, too: see `decode`."""
        self.replays = 0
        """Steps that were computed by a graph."""
        place, rows = pool.data.device, batches[-1]
        self._inbox = device.inbox(numbers_of(rows))
        self._host = [_HostRows(numbers, rows) for numbers in self._inbox.buffers]
        self._rows = RowColumns.views(self._inbox.tensor, rows)

        def whole(value: int, size: int = rows, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full((size,), value, dtype=dtype, device=place)

        padding = pool.padding_page
        self._inputs = GraphInputs(
            token_ids=whole(0),
            positions=whole(0),
            pages=whole(padding),
            offsets=whole(0),
            hidden=torch.zeros((rows, hidden_size), dtype=pool.shape.dtype, device=place),
            tokens=whole(0),
            indices=whole(padding, LISTED_PAGES * pool.pages + rows, torch.int32),
        )

    @torch.inference_mode()
    def capture(
        self,
        parts: GraphParts,
        capture: Capture,
        batches: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> dict[int, float]:
        """Captures graphs of `batches`, which include the largest. The largest comes first, because
        smaller ones reuse its memory. Returns the seconds that each took, in this order."""
        self._parts, self._capture = parts, capture
        self.samples = parts.sample is not None
        took_seconds = {}
        for batch in sorted(batches, reverse=True):
            began = clock()
            self.capture_batch(batch)
            took_seconds[batch] = clock() - began
        return took_seconds

    @torch.inference_mode()
    def capture_batch(self, batch: int) -> None:
        """Captures the graph of one batch size, after `capture`. Steps may be running."""
        self._graphs[batch] = self._captured(batch, self._parts, self._capture)
        self._captured_batches = tuple(sorted(self._graphs))

    @property
    def missing(self) -> tuple[int, ...]:
        """Batch sizes to capture later, ascending."""
        if self._given_up or len(self._graphs) == len(self._batches):
            return ()
        return tuple(batch for batch in self._batches if batch not in self._graphs)

    def lacks(self, rows: int) -> int | None:
        """The batch size for `rows` rows if it is missing; otherwise None."""
        batch = batch_for(rows, self._batches)
        return None if self._given_up or batch in self._graphs else batch

    def give_up_missing(self) -> None:
        """Captures no more: steps keep the graphs that there are."""
        self._given_up = True

    def _captured(self, batch: int, parts: GraphParts, capture: Capture) -> _Graph:
        """A graph's parts, captured over rows of padding."""
        columns, inputs = self._rows, self._inputs
        indptr, last_page_len = columns.indptr[: batch + 1], columns.last_page_len[:batch]
        attention = parts.attention(GraphRows(indptr, inputs.indices, last_page_len))
        host = self._host[self._inbox.writable()]
        host.fill(_NO_ROWS, batch, self._padding_row, self._pool.page_size)
        self._inbox.send()
        # An earlier step may have left its rows' pages there, which the first run would overwrite.
        for pages in (inputs.pages, inputs.indices):
            pages[:batch].fill_(self._pool.padding_page)
        attention.plan(*host.plan(batch))
        rows, contexts = columns.rows[:batch], columns.contexts[:batch]
        tokens, positions = inputs.token_ids[:batch], inputs.positions[:batch]
        layout = _layout(inputs, attention)

        def layers() -> None:
            hidden = parts.forward(tokens, positions, self._pool, layout)
            inputs.hidden[:batch].copy_(hidden)

        def sampling() -> None:
            assert parts.sample is not None
            inputs.tokens[:batch].copy_(parts.sample(inputs.hidden[:batch], rows, contexts))

        return _Graph(
            rows=(rows, contexts, indptr),
            inputs=(tokens, positions, inputs.pages[:batch], inputs.offsets[:batch]),
            attention=attention,
            layers=capture(layers),
            sampling=capture(sampling) if self.samples else None,
        )

    def staged(self, numbers: RowNumbers) -> StagedStep | None:
        """Fills the host's buffer with rows of one token each. None: no graph serves the step,
        because it has too many rows or pages."""
        batch = batch_for(len(numbers.rows), self._captured_batches)
        if batch is None:
            return None
        host = self._host[self._inbox.writable()]
        pages = host.fill(numbers, batch, self._padding_row, self._pool.page_size)
        return StagedStep(numbers, batch, host) if pages <= len(self._inputs.indices) else None

    def hidden(self, token_ids: Tensor, layout: TokenLayout) -> Tensor | None:
        """Hidden states for token_ids [n] → [n, h], valid until the next call. None: no graph
        serves the step, because it has too many tokens or too long contexts."""
        numbers = layout.numbers
        if layout.extends:
            tokens = len(token_ids)
            if tokens > self._batches[-1] or self._reads_again(numbers) > AGAIN_BYTES:
                return None
            numbers = numbers.of_single_tokens()
        step = self.staged(numbers)
        if step is None:
            return None
        self._begin(step, layout.page_table)
        self._inputs.token_ids[: len(token_ids)].copy_(token_ids)
        self._graphs[step.batch].layers()
        return self._inputs.hidden[: len(token_ids)]

    def decode(self, step: StagedStep, page_table: Tensor) -> Tensor:
        """Computes a decode step from its rows' last tokens to their next ones: [n], valid until
        the next call. Needs `samples`."""
        graph = self._graphs[step.batch]
        assert graph.sampling is not None
        self._begin(step, page_table)
        graph.layers()
        graph.sampling()
        return self._inputs.tokens[: len(step.numbers.rows)]

    def _begin(self, step: StagedStep, page_table: Tensor) -> None:
        """Sends the rows, lists their pages, and plans their attention."""
        graph, pool = self._graphs[step.batch], self._pool
        read = *graph.rows, page_table, self._last_tokens
        written = *graph.inputs, self._inputs.indices
        self._inbox.send()
        self._parts.decode_inputs(DecodeTensors(*read, *written, pool.page_size, pool.padding_page))
        graph.attention.plan(*step.host.plan(step.batch))
        self.replays += 1

    def _reads_again(self, numbers: RowNumbers) -> int:
        """Bytes that rows of several tokens read again if each token becomes a row."""
        counts = np.diff(numbers.begins)
        again = ((counts - 1) * numbers.contexts - counts * (counts - 1) // 2).sum()
        return int(again) * self._pool.shape.bytes_per_token


def _layout(inputs: GraphInputs, attention: GraphAttention) -> TokenLayout:
    """Layout for rows of one token. The attention's plan locates their contexts, so the other
    fields are placeholders of valid form."""
    rows = np.arange(attention.batch + 1)
    numbers = RowNumbers(rows[:-1], rows, np.ones_like(rows[:-1]))
    begins = torch.arange(len(rows), device=inputs.pages.device)
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
