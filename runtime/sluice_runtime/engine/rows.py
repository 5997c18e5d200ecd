"""Rows that persist from step to step, and a step's inputs from them. Knows no request.

`RowTable` applies a batch's deltas to page tables, lengths and last tokens. The host knows lengths
and pages without knowing any token; the device has a copy of the page table, and it alone has the
last tokens, which a step hands to the next one.

Inputs of a forward pass are flat token tensors: extend rows first, then verified rows, then decode
rows. `host_inputs` makes what the host knows, without the device; `step_inputs` sends it to the
device. The number of operations does not depend on the number of decode rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.adapters import AdapterTable
from sluice_runtime.engine.device import Device
from sluice_runtime.engine.sampling.draw import SamplingTable, TableSize
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Numbers, RowNumbers, TokenLayout
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.scheduler.batch import Batch, ExtendRow, RowTrimmed, VerifyRow


class RowTable:
    """`rows` rows of at most `max_pages` pages."""

    def __init__(
        self, rows: int, max_pages: int, pool: PagePool, device: Device, *, clears_pages: bool
    ) -> None:
        self._pool = pool
        self._device = device
        self._clears_pages = clears_pages
        self._page_counts = [0] * rows
        self.page_size = pool.page_size
        self.pages: Numbers = np.full((rows, max_pages), pool.padding_page, np.int64)
        """Page table [rows, max_pages] on the host."""
        self._flat_pages = self.pages.ravel()
        self.page_table = device.mirror(self.pages)
        """Page table on the device, as of the last `send`."""
        self._flat_page_table = self.page_table.view(-1)
        self.lengths: Numbers = np.zeros(rows, np.int64)
        """Tokens of each row in the pool."""
        self.last_tokens = torch.zeros(rows + 1, dtype=torch.int64, device=device.place)
        """Last sampled token of each row, on the device: not in the pool yet, the input of a decode
        step. One more, for a graph's rows of padding, which are row `rows`."""
        self._decoding: tuple[tuple[int, ...], Numbers] = (), column(())
        self._changed: list[Numbers] = []
        self._changed_places: list[int] = []
        """Places in the page table that the device lacks: ranges of several, and single ones."""
        self._emptied: list[int] = []
        """Rows that the device is to fill with padding, before it gets changed places."""
        self._known_tokens: dict[int, int] = {}
        """Last tokens that the device lacks, by row."""
        self._to_clear: list[int] = []
        """Pages that are to be zeroed."""

    def apply(self, batch: Batch) -> None:
        """Applies, in this order: pages replaced, rows trimmed, rows dropped, rows added, pages
        appended. `send` follows before anything of the batch is computed."""
        for replaced in batch.replaced_pages:
            self._set_pages(replaced.row, replaced.first, replaced.page_ids)
        for trimmed in batch.trimmed_rows:
            self._trim(trimmed)
        for row in batch.dropped_rows:
            self._drop(row)
        resumed = {added.row for added in batch.added_rows if added.computed_tokens}
        for added in batch.added_rows:
            if added.row in resumed:
                self.lengths[added.row] = added.computed_tokens
                self._known_tokens[added.row] = added.last_token
        for appended in batch.appended_pages:
            first = self._page_counts[appended.row]
            self._set_pages(appended.row, first, appended.page_ids)
            self._page_counts[appended.row] = first + len(appended.page_ids)
        # Some backends read a row's last page before it is full; no other page is read before it is
        # full.
        if self._clears_pages:
            self._clear_last_pages(batch, resumed)

    def decoding(self, rows: tuple[int, ...]) -> RowNumbers:
        """Numbers of a step in which these rows decode. Most steps decode the rows of the step
        before."""
        if rows != self._decoding[0]:
            self._decoding = rows, column(rows)
        numbers = self._decoding[1]
        return RowNumbers(numbers, np.arange(len(rows) + 1), self.lengths[numbers] + 1)

    def send(self) -> None:
        """Brings the device up to date. Updates that failed for lack of memory remain for the next
        call."""
        changed, emptied = self._changed or self._changed_places, self._emptied
        if not (changed or emptied or self._known_tokens or self._to_clear):
            return
        columns: list[Numbers] = []
        if emptied:
            columns.append(column(emptied))
        if changed:
            # A place may occur twice, which does no harm: both get its present value.
            places = np.concatenate([column(self._changed_places), *self._changed])
            columns += places, self._flat_pages[places]
        if known := self._known_tokens:
            columns += column(known), column(known.values())
        if self._to_clear:
            columns.append(column(self._to_clear))
        sent = iter(self._device.upload(columns))
        if emptied:
            self.page_table.index_fill_(0, next(sent), self._pool.padding_page)
        if changed:
            self._flat_page_table.index_copy_(0, next(sent), next(sent))
        if known:
            self.last_tokens.index_copy_(0, next(sent), next(sent))
        if self._to_clear:
            self._pool.clear(next(sent))
        self._changed, self._changed_places, self._emptied = [], [], []
        self._known_tokens, self._to_clear = {}, []

    def _clear_last_pages(self, batch: Batch, resumed: set[int]) -> None:
        """Marks the last page of each row for zeroing; in a resumed row only the page that it
        continues on, which is appended second."""
        for appended in batch.appended_pages:
            if appended.row in resumed:
                resumed.remove(appended.row)
            else:
                self._to_clear.append(appended.page_ids[-1])

    def _trim(self, trimmed: RowTrimmed) -> None:
        row, pages = trimmed.row, trimmed.pages
        self._set_pages(row, pages, (self._pool.padding_page,) * (self._page_counts[row] - pages))
        self._page_counts[row] = pages
        self.lengths[row] = trimmed.length
        self._known_tokens[row] = trimmed.last_token

    def _drop(self, row: int) -> None:
        self.pages[row, : self._page_counts[row]] = self._pool.padding_page
        # Other backends read no page behind a row's length.
        if self._device.asynchronous and self._clears_pages:
            self._emptied.append(row)
        self._page_counts[row] = 0
        self.lengths[row] = 0

    def _set_pages(self, row: int, first: int, page_ids: tuple[int, ...]) -> None:
        assert first + len(page_ids) <= self.pages.shape[1], "the next row has the page behind them"
        place = row * self.pages.shape[1] + first
        if len(page_ids) == 1:  # as in nearly every step
            self._flat_pages[place] = page_ids[0]
            if self._device.asynchronous:
                self._changed_places.append(place)
            return
        end = place + len(page_ids)
        self._flat_pages[place:end] = page_ids
        if self._device.asynchronous:
            self._changed.append(np.arange(place, end))


def column(values: Iterable[int]) -> Numbers:
    """Array [n] of the values, in their order."""
    return np.fromiter(values, np.int64)


@dataclass(frozen=True)
class HostInputs:
    """Inputs on the host for a step of n tokens in r rows; after m of the tokens a token is
    sampled. Known before earlier steps' tokens."""

    token_ids: Numbers
    """Token ids [n]; those of decode rows, which come last, are unknown here."""
    positions: Numbers
    """Positions [n] in their rows."""
    pages: Numbers
    """Pages [n] of the pool."""
    offsets: Numbers
    """Offsets [n] within their pages."""
    rows: RowNumbers
    extends: int
    """Number of rows of several tokens: those that extend, then those that are verified."""
    drafts: Numbers
    """Number of drafts of each verified row: its tokens except the first."""
    sampled_tokens: Numbers
    """Indices [m] into the n tokens."""
    sampled_rows: Numbers
    """Rows [m] of the sampled tokens."""
    sampling_rows: tuple[int, ...]
    """Rows [m] of the sampled tokens, as a tuple: see `Batch.sampling_rows`."""

    @property
    def decodes(self) -> int:
        return len(self.rows.rows) - self.extends

    @property
    def sampled_contexts(self) -> Numbers:
        """Number of tokens before each sampled token [m], which is its position."""
        return self.positions[self.sampled_tokens] + 1

    @property
    def sampled_drafts(self) -> Numbers:
        """Number of drafts before each sampled token [m]."""
        counts = self.drafts + 1
        verified = np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)
        drafts = np.zeros_like(self.sampled_tokens)
        end = len(drafts) - self.decodes
        drafts[end - len(verified) : end] = verified
        return drafts


@dataclass(frozen=True)
class StepInputs:
    """Inputs on the device: n tokens, m of which are followed by a sampled token."""

    token_ids: Tensor
    """Token ids [n]."""
    positions: Tensor
    """Positions [n] in their rows."""
    layout: TokenLayout
    sampled_tokens: Tensor
    """Indices [m] into the n tokens."""
    sampled_rows: Tensor
    """Rows [m], in the order of `Batch.sampling_rows`."""

    def of_first_row(self) -> tuple[StepInputs, StepInputs]:
        """Inputs of the first row, which extends, and inputs of all other rows; both without
        sampled tokens."""
        first, others = self.layout.after_row(1)
        tokens = len(first.pages)
        return (
            replace(
                self,
                token_ids=self.token_ids[:tokens],
                positions=self.positions[:tokens],
                layout=first,
            ),
            replace(
                self,
                token_ids=self.token_ids[tokens:],
                positions=self.positions[tokens:],
                layout=others,
            ),
        )


def host_inputs(batch: Batch, rows: RowTable) -> HostInputs:
    """Inputs that the host knows. Call it after the batch's deltas were applied and before the step
    runs."""
    # numpy, because for such small arrays torch takes five times as long, and may wake its threads.
    page_size = rows.page_size
    extends: Sequence[ExtendRow | VerifyRow] = batch.extend_rows + batch.verify_rows
    numbers = column([*(extend.row for extend in extends), *batch.decode_rows])
    decoding = numbers[len(extends) :]
    starts = np.append(column([extend.start for extend in extends]), rows.lengths[decoding])
    counts = np.ones_like(numbers)
    counts[: len(extends)] = [len(extend.token_ids) for extend in extends]
    prompt_ids = column(chain.from_iterable(extend.token_ids for extend in extends))
    ends = counts.cumsum()
    contexts = starts + counts
    # Row and position of every token.
    token_rows = numbers.repeat(counts)
    positions = np.arange(len(token_rows)) + (contexts - ends).repeat(counts)
    prompts = len(batch.extend_rows)
    sampling = [i for i, extend in enumerate(batch.extend_rows) if extend.samples]
    # After the prompts' tokens, a token is sampled after each token.
    behind = np.arange(int(ends[prompts - 1]) if prompts else 0, len(token_rows))
    sampled_tokens = np.append(ends[column(sampling)] - 1, behind)
    return HostInputs(
        token_ids=np.append(prompt_ids, np.zeros_like(decoding)),
        positions=positions,
        pages=rows.pages[token_rows, positions // page_size],
        offsets=positions % page_size,
        rows=RowNumbers(numbers, np.append(0, ends), contexts),
        extends=len(extends),
        drafts=counts[prompts : len(extends)] - 1,
        sampled_tokens=sampled_tokens,
        sampled_rows=token_rows[sampled_tokens],
        sampling_rows=batch.sampling_rows,
    )


def step_inputs(host: HostInputs, rows: RowTable, device: Device) -> StepInputs:
    """Inputs on the device, sent in one copy. Decode rows get their token from `rows`, so the
    device's part of `rows` must be up to date."""
    numbers = host.rows
    (
        token_ids, positions, pages, offsets,
        row_numbers, begins, contexts,
        sampled_tokens, sampled_rows,
    ) = device.upload((
        host.token_ids, host.positions, host.pages, host.offsets,
        numbers.rows, numbers.begins, numbers.contexts,
        host.sampled_tokens, host.sampled_rows,
    ))  # fmt: skip
    if host.decodes:
        decoding = row_numbers[host.extends :]
        torch.index_select(rows.last_tokens, 0, decoding, out=token_ids[-host.decodes :])
    layout = TokenLayout(
        pages=pages,
        offsets=offsets,
        page_table=rows.page_table,
        rows=row_numbers,
        begins=begins,
        contexts=contexts,
        extends=host.extends,
        numbers=numbers,
    )
    return StepInputs(token_ids, positions, layout, sampled_tokens, sampled_rows)


@dataclass(frozen=True)
class RowSizes:
    """Number of rows, and maximum tokens of each."""

    rows: int
    context_length_tokens: int


@dataclass(frozen=True)
class RowState:
    """State of each row from step to step."""

    table: RowTable
    sampling: SamplingTable
    matchers: Matchers
    """Matchers of the rows' grammars."""
    adapters: AdapterTable | None = None
    """Adapters of the rows; None: the engine has none."""


def allocated_rows(
    model: Decoder,
    pool: PagePool,
    sizes: RowSizes,
    device: Device,
    matchers: Matchers,
    adapters: AdapterTable | None = None,
) -> RowState:
    """Rows for `model`, whose pages are in `pool`."""
    context = sizes.context_length_tokens
    clears_pages = model.backend.reads_whole_pages
    max_pages = -(-context // pool.page_size)
    table = RowTable(sizes.rows, max_pages, pool, device, clears_pages=clears_pages)
    size = TableSize(sizes.rows, model.spec.vocabulary_size, context)
    return RowState(table, SamplingTable(size, device, model.backend), matchers, adapters)
