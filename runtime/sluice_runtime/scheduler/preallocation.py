"""Rows and pages for requests whose prompts another engine computes.

Retracted requests go first. If several tenants wait, the next place is for the tenant with the
fewest active requests; within a tenant requests go by arrival. Some tokens are kept free for each
active request, so that a prompt just received is not retracted at once. Knows neither who computes
a prompt nor how it arrives.
"""

from __future__ import annotations

from typing import Final

from sluice_runtime.scheduler.admission_bounds import JOINED_PAGES, AdapterSlots, Locking
from sluice_runtime.scheduler.batch import Preallocated
from sluice_runtime.scheduler.kv_allocator import KvAllocator, pages_for
from sluice_runtime.scheduler.limits import least_answer
from sluice_runtime.scheduler.policies.ageing import shared_by_tenants
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import RequestTable
from sluice_runtime.scheduler.settings import SchedulerSettings

RESERVED_TOKENS: Final = 512
"""Most tokens kept free for the answer of each active request; fewer if the answer must be
shorter."""


class Preallocations:
    """Admission of prompts that are computed elsewhere."""

    def __init__(self, settings: SchedulerSettings, table: RequestTable, kv: KvAllocator) -> None:
        self._page_size = settings.page_size
        self._max_adapters = settings.max_adapters
        self._table = table
        self._kv = kv

    def take(self, now: float) -> list[Preallocated]:
        """Gives rows and pages to as many requests as fit, up to the pages of a step; one request
        may have more pages. A request that does not fit blocks later ones; a request whose adapter
        has no slot is skipped."""
        waiting = self._table.awaiting_pages
        retracted = any(request.output_tokens for request in self._table.waiting)
        if retracted or not (waiting and self._kv.free_rows):
            return []
        preallocated: list[Preallocated] = []
        pages = 0
        reserved = self._reserved_tokens()
        adapters = AdapterSlots(self._max_adapters, self._table.active(), now)
        active = list(self._table.active())
        for request in shared_by_tenants(list(waiting.values()), active, by_priority=False):
            if not adapters.admits(request):
                continue
            pages += pages_for(len(request.token_ids), self._page_size)
            if preallocated and pages > JOINED_PAGES:
                break
            match = self._kv.match(request)
            own = _reserved_tokens(request)
            if not self._fits(request, match, reserved + own):
                break
            reserved += own
            adapters.add(request)
            preallocated.append(self._take(request, match))
        return preallocated

    def _take(self, request: Request, match: Match) -> Preallocated:
        self._kv.take([(request, match, len(request.token_ids))])
        request.cached_tokens = request.computed_tokens
        self._table.preallocate(request)
        pages = tuple(request.page_ids)
        return Preallocated(request.request_id, pages, request.computed_tokens)

    def _fits(self, request: Request, match: Match, reserved_tokens: int) -> bool:
        """Whether there is a row, and pages for the prompt and its next token, if any. Reserved
        tokens count too, unless no other request is active."""
        if not self._kv.free_rows:
            return False
        tokens = len(request.token_ids) + least_answer(request.remaining_tokens)
        pages = pages_for(tokens, self._page_size) - match.pages
        left = self._kv.available_pages - pages - Locking().cost(match)
        alone = next(self._table.active(), None) is None
        return left >= 0 and (alone or left * self._page_size >= reserved_tokens)

    def _reserved_tokens(self) -> int:
        return sum(map(_reserved_tokens, self._table.active()))


def _reserved_tokens(request: Request) -> int:
    return min(RESERVED_TOKENS, max(0, request.remaining_tokens))
