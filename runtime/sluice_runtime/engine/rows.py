"""Rows that persist from step to step: page tables, lengths, last tokens, sampling parameters.

Applies a batch's deltas; knows neither requests nor the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.messages import Sampling
from sluice_runtime.scheduler.batch import Batch


class RowTable:
    """`rows` rows of at most `max_pages` pages."""

    def __init__(self, rows: int, max_pages: int, pool: PagePool) -> None:
        self._pool = pool
        self._page_counts = [0] * rows
        self.page_size = pool.page_size
        self.page_table = torch.full((rows, max_pages), pool.padding_page)
        self.lengths = torch.zeros(rows, dtype=torch.int64)
        """Tokens of each row in the pool."""
        self.last_tokens = torch.zeros(rows, dtype=torch.int64)
        """Sampled last, not in the pool yet: the input of a decode step."""
        self.temperatures = torch.zeros(rows)
        self.top_ps = torch.zeros(rows)
        self.top_ks = torch.zeros(rows, dtype=torch.int64)
        self.seeds = torch.zeros(rows, dtype=torch.int64)

    def apply(self, batch: Batch) -> None:
        """Pages replaced, rows dropped, rows added, pages appended: in this order."""
        for replaced in batch.replaced_pages:
            self._set_pages(replaced.row, replaced.first, replaced.page_ids)
        for row in batch.dropped_rows:
            self._drop(row)
        for added in batch.added_rows:
            self._set_sampling(added.row, added.sampling)
        for appended in batch.appended_pages:
            first = self._page_counts[appended.row]
            self._set_pages(appended.row, first, appended.page_ids)
            self._page_counts[appended.row] = first + len(appended.page_ids)
        # Only the last page of a row is read before all of it is written.
        if last := [appended.page_ids[-1] for appended in batch.appended_pages]:
            self._pool.clear(torch.tensor(last))

    def _drop(self, row: int) -> None:
        self.page_table[row, : self._page_counts[row]] = self._pool.padding_page
        self._page_counts[row] = 0
        self.lengths[row] = 0

    def _set_sampling(self, row: int, sampling: Sampling) -> None:
        self.temperatures[row] = sampling.temperature
        self.top_ps[row] = sampling.top_p
        self.top_ks[row] = sampling.top_k
        self.seeds[row] = sampling.seed

    def _set_pages(self, row: int, first: int, page_ids: tuple[int, ...]) -> None:
        self.page_table[row, first : first + len(page_ids)] = torch.tensor(page_ids)

    def sampling_of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """temperature, top_p, top_k and seed of `rows`."""
        columns = (self.temperatures, self.top_ps, self.top_ks, self.seeds)
        temperature, top_p, top_k, seed = (column[rows] for column in columns)
        return temperature, top_p, top_k, seed
