"""Rows and pages for requests whose prompts somebody else computes, in the order of their arrival.

Whoever was retracted goes first. For each request that is active a
number of tokens is kept free, so that what was just received is not retracted at once. Knows
neither who computes a prompt nor how it arrives.
"""

from __future__ import annotations

from typing import Final

from sluice_runtime.scheduler.adapter_room import AdapterRoom
from sluice_runtime.scheduler.batch import Preallocated
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.lock_costs import Locking
from sluice_runtime.scheduler.pages import pages_for
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import RequestTable
from sluice_runtime.scheduler.settings import SchedulerSettings

RESERVED_TOKENS: Final = 512
"""Of the answer of each active request, if it may become so long."""


class Preallocations:
    """The door for prompts that are computed elsewhere."""

    def __init__(self, settings: SchedulerSettings, table: RequestTable, kv: KvAllocator) -> None:
        self._page_size = settings.page_size
        self._max_adapters = settings.max_adapters
        self._table = table
        self._kv = kv

    def take(self, now: float) -> list[Preallocated]:
        """Gives rows and pages to as many as there are any for; one that does not fit is not
        overtaken, but for one whose adapter has no room."""
        waiting = self._table.awaiting_pages
        retracted = any(request.output_tokens for request in self._table.waiting)
        if retracted or not (waiting and self._kv.free_rows):
            return []
        given: list[Preallocated] = []
        reserved = self._reserved_tokens()
        adapters = AdapterRoom(self._max_adapters, self._table.active(), now)
        for request in list(waiting.values()):
            if not adapters.admits(request):
                continue
            match = self._kv.match(request)
            own = _reserved_tokens(request)
            if not self._fits(request, match, reserved + own):
                break
            reserved += own
            adapters.add(request)
            given.append(self._take(request, match))
        return given

    def _take(self, request: Request, match: Match) -> Preallocated:
        self._kv.take([(request, match)])
        request.cached_tokens = request.computed_tokens
        self._table.preallocate(request)
        pages = tuple(request.page_ids)
        return Preallocated(request.request_id, pages, request.computed_tokens)

    def _fits(self, request: Request, match: Match, reserved_tokens: int) -> bool:
        """A row, the prompt's pages and one for the next token; and what is reserved, unless the
        request has the engine alone."""
        if not self._kv.free_rows:
            return False
        pages = pages_for(len(request.token_ids) + 1, self._page_size) - match.pages
        left = self._kv.available_pages - pages - Locking().cost(match)
        alone = next(self._table.active(), None) is None
        return left >= 0 and (alone or left * self._page_size >= reserved_tokens)

    def _reserved_tokens(self) -> int:
        return sum(map(_reserved_tokens, self._table.active()))


def _reserved_tokens(request: Request) -> int:
    return min(RESERVED_TOKENS, max(0, request.remaining_tokens))
