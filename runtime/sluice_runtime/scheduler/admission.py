"""Decides which waiting prompts, and how much of each, join the next batch.

`PrefillAdder` counts down three budgets and returns a complete `PrefillPlan`; it changes no request
and allocates nothing. It keeps no state between steps, so no flag can become stale. The cut
prompt's lead over others decides how they share a step.

The budgets, in tokens (`mixed` decode rows share the step):
  rem_input  maxPrefillTokens - mixed; without chunking the first prompt of a batch may exceed it
  rem_chunk  chunkSize - mixed; the minimum prefill share is kept out of both
  rem_total  pages left once the decode rows have theirs, less what running requests are expected
             to need: sum of min(max_tokens - output, 4096) x new-token ratio (1 with ignore_eos)
Pages left are free or evictable pages that no cut prompt has reserved. A cached prefix that a
request will use cannot be evicted, so it is subtracted before the request is considered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from sluice_runtime.scheduler.admission_bounds import (
    JOINED_PAGES,
    AdapterSlots,
    Locking,
    PrefillHeadroom,
    PrefixesInFlight,
    Share,
    share_with,
)
from sluice_runtime.scheduler.batch import LayerGroup
from sluice_runtime.scheduler.host_index import MAX_LOADED
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.pacing import ChunkBudget
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import expected_tokens
from sluice_runtime.scheduler.settings import SchedulerSettings

if TYPE_CHECKING:
    from sluice_runtime.scheduler.host_tier import HostTier

MAX_SKIPPED: Final = 32
"""Most waiting prompts that one step skips because they are too long to join a cut prompt."""
MAX_LOOKED_AT: Final = 1024
"""Most waiting prompts that one step considers."""


class AdmitResult(Enum):
    """Outcome of adding a request. CONTINUE: it was added. NO_TOKEN: the pool has no pages left.
    OTHER: the step has no budget left. TOO_LONG: it fits no step together with the cut prompt."""

    CONTINUE = "Continue"
    NO_TOKEN = "NoToken"  # noqa: S105
    OTHER = "Other"
    TOO_LONG = "TooLong"


class PrefillItem(NamedTuple):
    """Tokens [start, end) of a request; `cut` when more must follow in a later step. Tokens before
    `start` are in the pool: from earlier chunks, or cached."""

    request: Request
    start: int
    end: int
    cut: bool
    match: Match | None = None
    """Cached prefix of a request that starts; None: it has started before. If another prefix is
    locked first, the request may have to be matched again."""
    layers: LayerGroup | None = None
    """Layers in which the step computes the tokens; None: all, so the tokens are complete."""

    @property
    def completes(self) -> bool:
        """Whether the tokens are in the pool after the step."""
        return self.layers is None or self.layers.last


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The prompts of a step, and why it has no more of them."""

    items: tuple[PrefillItem, ...] = ()
    reason: str = "Continue"
    """Value of an `AdmitResult`; "DecodeTurn": this step is for decode rows alone; "LayerGroups": a
    chunk is continued in the next layers."""
    budget: ChunkBudget | None = None
    """Token budget of the step; None if there was no prompt to plan."""
    returning: tuple[tuple[Request, Match], ...] = ()
    """Waiting requests with their cached prefix, the rest of which is loaded from the host tier."""

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute or to copy."""
        return bool(self.items or self.returning)

    @property
    def scores_prompts(self) -> bool:
        """Whether decode rows must keep out of the step."""
        return any(item.request.scores_prompt for item in self.items)


class PrefillAdder:
    """Countdown of one step's budgets. `budget`: the step's token budget; None: chunkSize."""

    def __init__(
        self,
        settings: SchedulerSettings,
        headroom: PrefillHeadroom,
        ratio: float,
        budget: ChunkBudget | None = None,
    ) -> None:
        self._page_size = settings.page_size
        self._ratio = ratio
        self._budget = budget
        share = max(settings.min_prefill_tokens, settings.page_size)
        self._rem_input = max(settings.max_prefill_tokens - headroom.decode_rows, share)
        chunk = budget.tokens if budget else settings.chunk_size
        self._rem_chunk = None if chunk is None else max(chunk - headroom.decode_rows, share)
        self._available_pages = headroom.available_pages
        self._rem_total = headroom.available_pages * settings.page_size - headroom.reserved_tokens
        self._locking = Locking()
        self._rem_rows = headroom.rows
        self._alone = headroom.alone
        self._joined_pages = 0
        """Cached pages of the waiting requests that join."""
        self._items: list[PrefillItem] = []
        self._returning: list[tuple[Request, Match]] = []
        self._cut = False
        self._share: Share | None = None
        """Share of the continued prompt; None unless a part of the step is kept for it."""
        self._beginning_weight = budget.beginning_weight if budget else 1.0
        self._shared_tokens = 0
        """Tokens that other prompts got in the step that is shared with the continued one."""

    @property
    def closed(self) -> AdmitResult | None:
        """Reason why no waiting request can join, so that the policy need not sort; None: one may
        join."""
        if self._rem_rows <= 0 or (self._rem_chunk is not None and self._rem_chunk <= 0):
            return AdmitResult.OTHER
        fits = self._available_pages > 0 and (self._alone or self._rem_total > self._page_size)
        return None if fits else AdmitResult.NO_TOKEN

    def make_way(self, continuing: Request | None) -> None:
        """Reserves the cut prompt's share of the step; call it before the first `add`. A prompt
        that ends in this step is added whole."""
        if continuing is None:
            return
        budget = self._step_tokens()
        if budget is None or continuing.uncomputed_tokens <= budget:
            self._add_continuing(continuing)
            return
        weight = self._beginning_weight
        self._share = share_with(continuing, budget, self._rem_input, self._page_size, weight)
        self._spend(self._share.kept_tokens, self._share.kept_tokens)
        self._cut = True

    def add_kept(self, continuing: Request | None) -> None:
        """Gives the cut prompt its reserved share and what others left; call it after the last
        `add`."""
        if continuing is not None and self._share:
            self._spend(-self._share.kept_tokens, -self._share.kept_tokens)
            self._share = None
            self._add_continuing(continuing)

    def add(self, request: Request, match: Match) -> AdmitResult:
        """Admits a waiting request, whole or up to a page boundary; `match` is what is cached."""
        if self._rem_rows <= 0:
            return AdmitResult.OTHER
        start = match.pages * self._page_size
        end, cut = self._end(request, start)
        if cut and self._share:
            fits = self._share.ever_fits(start, len(request.token_ids) - start)
            return AdmitResult.OTHER if fits else AdmitResult.TOO_LONG
        if cut and (self._cut or end <= start):
            return AdmitResult.OTHER
        if not cut and self._items and end - start > self._rem_input:
            return AdmitResult.OTHER
        joined_pages = self._joined_pages + match.pages
        if self._joined_pages and match.pages and joined_pages > JOINED_PAGES:
            return AdmitResult.OTHER
        if not self._reserve(request, match):
            return AdmitResult.NO_TOKEN
        self._joined_pages = joined_pages
        self._take(PrefillItem(request, start, end, cut, match))
        return AdmitResult.CONTINUE

    def add_returning(self, request: Request, match: Match, arriving_pages: int) -> AdmitResult:
        """Reserves pages as `add` does, but no part of the step, for a waiting request whose pages
        are copied from the host tier. `arriving_pages`: pages already taken for the request; if 0,
        its copies start now."""
        if self._rem_rows <= 0:
            return AdmitResult.OTHER
        if not self._reserve(request, match, arriving_pages):
            return AdmitResult.NO_TOKEN
        if not arriving_pages:
            self._returning.append((request, match))
        return AdmitResult.CONTINUE

    def plan(self, result: AdmitResult) -> PrefillPlan:
        """The complete plan; `result` is the last result of `add`."""
        returning = tuple(self._returning)
        return PrefillPlan(tuple(self._items), result.value, self._budget, returning)

    def _reserve(self, request: Request, match: Match, taken_pages: int = 0) -> bool:
        """Reserves the pages of a whole prompt and of its answer; False: there are too few."""
        cached = match.pages + taken_pages
        pages = pages_for(len(request.token_ids), self._page_size) - cached
        locked_pages, answer = self._locking.cost(match), expected_tokens(request)
        tokens = len(request.token_ids) - cached * self._page_size + answer
        if not self._fits(tokens, pages, locked_pages):
            return False
        self._locking.add(match)
        self._available_pages -= pages + locked_pages
        self._rem_total -= (pages + 1 + locked_pages) * self._page_size
        self._rem_total -= answer if request.ignore_eos else answer * self._ratio
        self._rem_rows -= 1
        return True

    def _add_continuing(self, request: Request) -> None:
        """Adds the next chunk of the cut request. Its pages are reserved, so it always makes
        progress; its answer is part of the reserved tokens."""
        start = request.computed_tokens
        self._take(PrefillItem(request, start, *self._end(request, start)), first=True)

    def _end(self, request: Request, start: int) -> tuple[int, bool]:
        """End of the step in a request's tokens, and whether the request is cut there. Cuts are at
        page boundaries of the whole prompt."""
        whole, budget = len(request.token_ids), self._step_tokens(start)
        if budget is None or whole - start <= budget:
            return whole, False
        return (start + max(budget, 0)) // self._page_size * self._page_size, True

    def _fits(self, tokens: int, pages: int, locked_pages: int) -> bool:
        """Whether the pool has room. `tokens`: tokens to compute, and expected afterwards; `pages`:
        pages for the tokens to compute; `locked_pages`: evictable pages that the request locks."""
        if pages + locked_pages > self._available_pages:
            return False
        if self._alone and not self._items:
            return True
        rem_total = self._rem_total - locked_pages * self._page_size
        return tokens + self._page_size < rem_total

    def _take(self, item: PrefillItem, *, first: bool = False) -> None:
        self._items.insert(0 if first else len(self._items), item)
        self._cut = self._cut or item.cut
        tokens = item.end - item.start
        if self._share is None:
            self._spend(tokens, tokens)
            return
        self._shared_tokens += tokens
        self._spend(tokens, math.ceil(tokens * self._share.weight(item.start)))

    def _step_tokens(self, start: int = 0) -> int | None:
        """Tokens that the step has left for a prompt from `start` on; None: chunking is off."""
        if self._rem_chunk is None:
            return None
        if self._share is None:
            return min(self._rem_chunk, self._rem_input)
        fitting = int(self._rem_chunk / self._share.weight(start))
        return min(fitting, self._rem_input, self._share.max_tokens - self._shared_tokens)

    def _spend(self, tokens: int, chunk_tokens: int) -> None:
        self._rem_input -= tokens
        if self._rem_chunk is not None:
            self._rem_chunk -= chunk_tokens


def plan_prefill(
    adder: PrefillAdder,
    continuing: Request | None,
    waiting: Iterable[Request],
    match: Callable[[Request], Match],
    prefixes: PrefixesInFlight,
    adapters: AdapterSlots,
    host: HostTier | None = None,
) -> PrefillPlan:
    """Admits waiting requests in order until one does not fit, and the request that was cut with
    the share that is kept for it.

    Four kinds of requests are skipped, and later ones may join. A prompt too long to be computed
    with the cut prompt waits until that has ended; others delay it by no more than their share. A
    request whose prefix is being computed finds it cached in a step or two. A request whose adapter
    has no slot waits for one. A request whose prefix continues in the host tier waits for the
    copies, with its pages and row reserved, or for a step that may begin them.
    """
    adder.make_way(continuing)
    result = adder.closed or _admit_waiting(adder, waiting, match, prefixes, adapters, host)
    adder.add_kept(continuing)
    return adder.plan(result)


def _admit_waiting(
    adder: PrefillAdder,
    waiting: Iterable[Request],
    match: Callable[[Request], Match],
    prefixes: PrefixesInFlight,
    adapters: AdapterSlots,
    host: HostTier | None,
) -> AdmitResult:
    """Returns the last result of `add`."""
    result, skipped, load_pages = AdmitResult.CONTINUE, 0, MAX_LOADED
    for request in islice(waiting, MAX_LOOKED_AT):
        if prefixes.same_head_as_last(request) or not adapters.admits(request):
            continue
        cached = match(request)
        if prefixes.covers(request, cached):
            continue
        arriving = host.arriving(request, cached) if host else 0
        returning = host.returning(request, cached, load_pages) if host and not arriving else 0
        if returning > load_pages:
            continue
        if arriving or returning:
            result = adder.add_returning(request, cached, arriving)
        else:
            result = adder.add(request, cached)
        if result is AdmitResult.CONTINUE:
            load_pages -= returning
            prefixes.add(request, cached.pages)
            adapters.add(request)
        elif result is AdmitResult.TOO_LONG and skipped < MAX_SKIPPED:
            skipped += 1
        else:
            break
    return result
