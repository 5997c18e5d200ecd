"""Writes a planned step down as a `Batch`: what the runner is told, and what requests then have.

Decides nothing; knows no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from sluice_runtime.scheduler.admission import PrefillItem
from sluice_runtime.scheduler.batch import Batch, ExtendRow, PagesAppended, forward_mode
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.request import Request, row_added, row_of
from sluice_runtime.scheduler.request_table import RequestTable

ROW: Final = attrgetter("row")
"""Of a running request, which has one."""


class BatchWriter:
    """Makes every batch."""

    def __init__(self, table: RequestTable, kv: KvAllocator) -> None:
        self._table = table
        self._kv = kv

    def write(
        self,
        step: int,
        starting: Sequence[Request],
        prefill: Sequence[PrefillItem],
        decode: Sequence[Request],
    ) -> Batch:
        """`starting`: requests that the runner does not know, of `prefill` or resumed; `decode`:
        none, or all that are ready."""
        added = tuple([row_added(request) for request in starting])
        started = [PagesAppended(row_of(r), tuple(r.page_ids)) for r in starting]
        for request in starting:
            request.row_announced = True
        opened, context_tokens = self._advance(decode) if decode else ([], 0)
        return Batch(
            step=step,
            mode=forward_mode(bool(prefill), bool(decode)),
            replaced_pages=self._kv.take_replaced_pages(),
            dropped_rows=self._kv.take_dropped_rows(),
            added_rows=added,
            appended_pages=(*started, *opened),
            extend_rows=tuple([self._extend(item) for item in prefill]),
            decode_rows=tuple(map(ROW, decode)),
            decode_context_tokens=context_tokens,
        )

    def _advance(self, decode: Sequence[Request]) -> tuple[list[PagesAppended], int]:
        """Advances each by one token. Returns the pages that were opened for that, and how many
        tokens the rows attend to."""
        running = self._table.running
        requests = running.rows_needing_page()
        pages = self._kv.append_pages(requests)
        context_tokens = running.context_tokens + len(decode)
        running.advance(decode)
        opened = [
            PagesAppended(row_of(request), (page,))
            for request, page in zip(requests, pages, strict=True)
        ]
        return opened, context_tokens

    def _extend(self, item: PrefillItem) -> ExtendRow:
        self._table.prefill(item.request, item.end, cut=item.cut)
        tokens = tuple(item.request.token_ids[item.start : item.end])
        return ExtendRow(row_of(item.request), item.start, tokens, samples=not item.cut)
