"""Writes a step down: what the runner is told, and what requests have once it has run.

Decides nothing; knows no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from sluice_runtime.scheduler.admission import PrefillItem
from sluice_runtime.scheduler.batch import Batch, ExtendRow, PagesAppended, forward_mode
from sluice_runtime.scheduler.holdings import Holdings
from sluice_runtime.scheduler.request import Request, row_added, row_of
from sluice_runtime.scheduler.retraction import opening
from sluice_runtime.scheduler.roster import Roster

ROW: Final = attrgetter("row")
"""Of a running request, which has one."""


class BatchWriter:
    """The one maker of batches."""

    def __init__(self, page_size: int, roster: Roster, holdings: Holdings) -> None:
        self._page_size = page_size
        self._roster = roster
        self._holdings = holdings

    def write(
        self,
        step: int,
        starting: Sequence[Request],
        prefill: Sequence[PrefillItem],
        decode: Sequence[Request],
    ) -> Batch:
        """`starting`: those of `prefill` that have their rows since this step."""
        started = [PagesAppended(row_of(r), tuple(r.page_ids)) for r in starting]
        opened = self._open_pages(decode)
        context_tokens = 0
        for request in decode:
            request.computed_tokens = computed = request.computed_tokens + 1
            context_tokens += computed
        return Batch(
            step=step,
            mode=forward_mode(bool(prefill), bool(decode)),
            replaced_pages=self._holdings.take_replaced_pages(),
            dropped_rows=self._holdings.take_dropped_rows(),
            added_rows=tuple([row_added(request) for request in starting]),
            appended_pages=(*started, *opened),
            extend_rows=tuple([self._extend(item) for item in prefill]),
            decode_rows=tuple(map(ROW, decode)),
            decode_context_tokens=context_tokens,
        )

    def _open_pages(self, decode: Sequence[Request]) -> list[PagesAppended]:
        """One page more for each row whose next token is the first of one."""
        requests = opening(decode, self._page_size)
        pages = self._holdings.open_pages(requests)
        return [
            PagesAppended(row_of(request), (page,))
            for request, page in zip(requests, pages, strict=True)
        ]

    def _extend(self, item: PrefillItem) -> ExtendRow:
        self._roster.prefill(item.request, item.end, cut=item.cut)
        tokens = tuple(item.request.token_ids[item.start : item.end])
        return ExtendRow(row_of(item.request), item.start, tokens, samples=not item.cut)
