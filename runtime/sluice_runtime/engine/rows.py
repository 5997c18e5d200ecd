"""Rows that persist from step to step: page tables, lengths, last tokens.

Applies a batch's deltas; knows neither requests nor the model.
"""

from __future__ import annotations

import torch

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.scheduler.batch import Batch


class RowTable:
    """`rows` rows of at most `max_pages` pages."""

    def __init__(
        self, rows: int, max_pages: int, pool: PagePool, *, clears_pages: bool = True
    ) -> None:
        self._pool = pool
        self._clears_pages = clears_pages
        self._page_counts = [0] * rows
        self.page_size = pool.page_size
        self.page_table = torch.full((rows, max_pages), pool.padding_page)
        self.lengths = torch.zeros(rows, dtype=torch.int64)
        """Tokens of each row in the pool."""
        self.last_tokens = torch.zeros(rows, dtype=torch.int64)
        """Sampled last, not in the pool yet: the input of a decode step."""

    def apply(self, batch: Batch) -> None:
        """Pages replaced, rows dropped, rows added, pages appended: in this order."""
        for replaced in batch.replaced_pages:
            self._set_pages(replaced.row, replaced.first, replaced.page_ids)
        for row in batch.dropped_rows:
            self._drop(row)
        resumed = {added.row for added in batch.added_rows if added.computed_tokens}
        for added in batch.added_rows:
            if added.row in resumed:
                self.lengths[added.row] = added.computed_tokens
                self.last_tokens[added.row] = added.last_token
        for appended in batch.appended_pages:
            first = self._page_counts[appended.row]
            self._set_pages(appended.row, first, appended.page_ids)
            self._page_counts[appended.row] = first + len(appended.page_ids)
        # Only the last page of a row is read before all of it is written, and not by all backends.
        if self._clears_pages:
            self._clear_last_pages(batch, resumed)

    def _clear_last_pages(self, batch: Batch, resumed: set[int]) -> None:
        """Of a row that is resumed, only a page that it gets to go on: it comes second."""
        last = []
        for appended in batch.appended_pages:
            if appended.row in resumed:
                resumed.remove(appended.row)
            else:
                last.append(appended.page_ids[-1])
        if last:
            self._pool.clear(torch.tensor(last))

    def _drop(self, row: int) -> None:
        self.page_table[row, : self._page_counts[row]] = self._pool.padding_page
        self._page_counts[row] = 0
        self.lengths[row] = 0

    def _set_pages(self, row: int, first: int, page_ids: tuple[int, ...]) -> None:
        self.page_table[row, first : first + len(page_ids)] = torch.tensor(page_ids)
