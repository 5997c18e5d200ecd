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
from sluice_runtime.scheduler.roster import Roster

ROW: Final = attrgetter("row")
"""Of a running request, which has one."""


class BatchWriter:
    """The one maker of batches."""

    def __init__(self, roster: Roster, holdings: Holdings) -> None:
        self._roster = roster
        self._holdings = holdings

    def write(
        self,
        step: int,
        starting: Sequence[Request],
        prefill: Sequence[PrefillItem],
        decode: Sequence[Request],
    ) -> Batch:
        """`starting`: those of `prefill` that have their rows since this step; `decode`: nobody, or
        all that are ready."""
        started = [PagesAppended(row_of(r), tuple(r.page_ids)) for r in starting]
        opened, context_tokens = self._advance(decode) if decode else ([], 0)
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

    def _advance(self, decode: Sequence[Request]) -> tuple[list[PagesAppended], int]:
        """One token more for each, and a page where that is the first of one; what they attend to,
        in tokens."""
        running = self._roster.running
        requests = running.opening()
        pages = self._holdings.open_pages(requests)
        context_tokens = running.context_tokens + len(decode)
        running.advance(decode)
        opened = [
            PagesAppended(row_of(request), (page,))
            for request, page in zip(requests, pages, strict=True)
        ]
        return opened, context_tokens

    def _extend(self, item: PrefillItem) -> ExtendRow:
        self._roster.prefill(item.request, item.end, cut=item.cut)
        tokens = tuple(item.request.token_ids[item.start : item.end])
        return ExtendRow(row_of(item.request), item.start, tokens, samples=not item.cut)
