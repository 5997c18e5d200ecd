"""Rows that persist from step to step: page tables, lengths, last tokens.

Applies a batch's deltas. Lengths and pages are known to the host without knowing any token; the
device has a copy of the page table, and it alone has the last tokens, which a step hands to the
next one. Knows neither requests nor the model.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from sluice_runtime.engine.device import Device
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.token_layout import Numbers
from sluice_runtime.scheduler.batch import Batch


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
        """[rows, max_pages], on the host."""
        self.page_table = device.mirror(self.pages)
        """The same on the device, as of the last `send`."""
        self.lengths: Numbers = np.zeros(rows, np.int64)
        """Tokens of each row in the pool."""
        self.last_tokens = torch.zeros(rows, dtype=torch.int64, device=device.place)
        """Sampled last, not in the pool yet: the input of a decode step. On the device."""
        self._changed: list[Numbers] = []
        """Places in the page table that the device does not have yet."""
        self._resumed_tokens: dict[int, int] = {}
        """By row, last tokens that the device does not have yet."""
        self._to_clear: list[int] = []
        """Pages that are to be zeroed."""

    def apply(self, batch: Batch) -> None:
        """Pages replaced, rows dropped, rows added, pages appended: in this order. `send` follows
        before anything of the batch is computed."""
        for replaced in batch.replaced_pages:
            self._set_pages(replaced.row, replaced.first, replaced.page_ids)
        for row in batch.dropped_rows:
            self._drop(row)
        resumed = {added.row for added in batch.added_rows if added.computed_tokens}
        for added in batch.added_rows:
            if added.row in resumed:
                self.lengths[added.row] = added.computed_tokens
                self._resumed_tokens[added.row] = added.last_token
        for appended in batch.appended_pages:
            first = self._page_counts[appended.row]
            self._set_pages(appended.row, first, appended.page_ids)
            self._page_counts[appended.row] = first + len(appended.page_ids)
        # Only the last page of a row is read before all of it is written, and not by all backends.
        if self._clears_pages:
            self._clear_last_pages(batch, resumed)

    def send(self) -> None:
        """Brings the device up to date; what memory was too short for stays for the next time."""
        if not (self._changed or self._resumed_tokens or self._to_clear):
            return
        # Places may be there twice; their values are those of now, so it does not matter.
        places = np.concatenate(self._changed) if self._changed else column(())
        resumed = self._resumed_tokens
        columns = (places, self.pages.ravel()[places], column(resumed), column(resumed.values()))
        at, pages, rows, tokens, cleared = self._device.upload((*columns, column(self._to_clear)))
        if self._changed:
            self.page_table.view(-1).index_copy_(0, at, pages)
        if resumed:
            self.last_tokens.index_copy_(0, rows, tokens)
        if self._to_clear:
            self._pool.clear(cleared)
        self._changed, self._resumed_tokens, self._to_clear = [], {}, []

    def _clear_last_pages(self, batch: Batch, resumed: set[int]) -> None:
        """Of a row that is resumed, only a page that it gets to go on: it comes second."""
        for appended in batch.appended_pages:
            if appended.row in resumed:
                resumed.remove(appended.row)
            else:
                self._to_clear.append(appended.page_ids[-1])

    def _drop(self, row: int) -> None:
        self._set_pages(row, 0, (self._pool.padding_page,) * self._page_counts[row])
        self._page_counts[row] = 0
        self.lengths[row] = 0

    def _set_pages(self, row: int, first: int, page_ids: tuple[int, ...]) -> None:
        end = first + len(page_ids)
        self.pages[row, first:end] = page_ids
        if self._device.asynchronous:
            self._changed.append(np.arange(first, end) + row * self.pages.shape[1])


def column(values: Iterable[int]) -> Numbers:
    """[n], in the order of the values."""
    return np.fromiter(values, np.int64)
