"""Which waiting prompts, and how much of each, join the next batch.

`PrefillAdder` counts three budgets down and returns a complete `PrefillPlan`; it changes no request
and allocates nothing. Nothing is remembered from step to step, so no flag can go stale.

The budgets, in tokens (`mixed` decode rows share the step):
  rem_input  maxPrefillTokens - mixed; without chunking the first prompt of a batch may exceed it
  rem_chunk  chunkSize - mixed; the minimum prefill share is kept out of both
  rem_total  pages left once the decode rows have theirs, less what running requests are expected
             to need: sum of min(max_tokens - output, 4096) x new-token ratio (1 with ignore_eos)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice_runtime.scheduler.pages import pages_for
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.retraction import opens_page
from sluice_runtime.scheduler.settings import SchedulerSettings

RESERVED_TOKENS_CLIP: Final = 4096
"""Longest answer that admission reckons with."""


class AdmitResult(Enum):
    """CONTINUE: ask for the next one. NO_TOKEN: the pool is spent. OTHER: the step is."""

    CONTINUE = "Continue"
    NO_TOKEN = "NoToken"  # noqa: S105
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """Tokens [start, end) of a request; `cut` when more of it must follow in a later step."""

    request: Request
    start: int
    end: int
    cut: bool


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """What joins the batch, and why nothing more does: `reason` stable, `message` for a person."""

    items: tuple[PrefillItem, ...]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Room:
    """What a step has left for prefill."""

    free_pages: int
    """Free pages less those that the decode rows take in this step."""
    reserved_tokens: float
    """Expected future need of what runs."""
    decode_rows: int
    """Rows that share the step's budgets; 0 when batches are not mixed."""
    rows: int
    """Requests that may still join."""
    alone: bool
    """Nothing else holds or needs a page."""


def reserved_tokens(request: Request, ratio: float) -> float:
    """Tokens that a running request is expected to generate still."""
    share = 1.0 if request.ignore_eos else ratio
    return min(request.remaining_tokens, RESERVED_TOKENS_CLIP) * share


def room_beside(
    running: Sequence[Request],
    prefilling: Request | None,
    settings: SchedulerSettings,
    ratio: float,
    free_pages: int,
    free_rows: int,
) -> Room:
    """What a step has left for prefill beside what runs; `ratio` is the new-token ratio."""
    held = [*running, *([prefilling] if prefilling else [])]
    opening = sum(opens_page(request, settings.page_size) for request in running)
    return Room(
        free_pages=free_pages - opening,
        reserved_tokens=sum(reserved_tokens(request, ratio) for request in held),
        decode_rows=len(running) if settings.mixed else 0,
        rows=free_rows,
        alone=not held,
    )


class PrefillAdder:
    """Counts one step's budgets down; made anew for each step."""

    def __init__(self, settings: SchedulerSettings, room: Room, ratio: float) -> None:
        self._page_size = settings.page_size
        self._ratio = ratio
        share = max(settings.min_prefill_tokens, settings.page_size)
        self._rem_input = max(settings.max_prefill_tokens - room.decode_rows, share)
        self._rem_chunk = (
            None
            if settings.chunk_size is None
            else max(settings.chunk_size - room.decode_rows, share)
        )
        self._free_pages = room.free_pages
        self._rem_total = room.free_pages * settings.page_size - room.reserved_tokens
        self._rem_rows = room.rows
        self._alone = room.alone
        self._items: list[PrefillItem] = []
        self._cut = False

    @property
    def closed(self) -> AdmitResult | None:
        """Why no waiting request whatever could join: their order need not be known then."""
        if self._rem_rows <= 0 or (self._rem_chunk is not None and self._rem_chunk <= 0):
            return AdmitResult.OTHER
        fits = self._free_pages > 0 and (self._alone or self._rem_total > self._page_size)
        return None if fits else AdmitResult.NO_TOKEN

    def add_continuing(self, request: Request) -> None:
        """The next chunk of the request that was cut. Its pages are its own already, so it always
        makes progress; its answer is part of what is reserved."""
        end = self._cut_end(request)
        self._take(request, len(request.token_ids) if end is None else end)

    def add(self, request: Request) -> AdmitResult:
        """Admits a waiting request, whole or up to a page boundary."""
        if self._rem_rows <= 0:
            return AdmitResult.OTHER
        end = self._cut_end(request)
        if end is not None and (self._cut or end <= request.computed_tokens):
            return AdmitResult.OTHER
        if end is None and self._items and request.uncomputed_tokens > self._rem_input:
            return AdmitResult.OTHER
        if not self._fits(request):
            return AdmitResult.NO_TOKEN
        self._charge(request)
        self._take(request, len(request.token_ids) if end is None else end)
        return AdmitResult.CONTINUE

    def plan(self, result: AdmitResult) -> PrefillPlan:
        """The complete plan; `result` is the last answer of `add`."""
        return PrefillPlan(tuple(self._items), result.value, self._explain(result))

    def _cut_end(self, request: Request) -> int | None:
        """Where the request must be cut, at an absolute page boundary; None when it fits whole."""
        if self._rem_chunk is None:
            return None
        budget = min(self._rem_chunk, self._rem_input)
        if request.uncomputed_tokens <= budget:
            return None
        return (request.computed_tokens + max(budget, 0)) // self._page_size * self._page_size

    def _fits(self, request: Request) -> bool:
        extend = request.uncomputed_tokens
        needed = pages_for(len(request.token_ids), self._page_size)
        if self._alone and not self._items:
            return needed <= self._free_pages
        answer = min(request.remaining_tokens, RESERVED_TOKENS_CLIP)
        return needed <= self._free_pages and extend + answer + self._page_size < self._rem_total

    def _charge(self, request: Request) -> None:
        """The pages of the whole prompt are the request's from now on, also when it is cut."""
        pages = pages_for(request.uncomputed_tokens, self._page_size)
        self._free_pages -= pages
        self._rem_total -= (pages + 1) * self._page_size + reserved_tokens(request, self._ratio)
        self._rem_rows -= 1

    def _take(self, request: Request, end: int) -> None:
        start = request.computed_tokens
        cut = end < len(request.token_ids)
        self._items.append(PrefillItem(request, start, end, cut))
        self._cut = self._cut or cut
        self._rem_input -= end - start
        if self._rem_chunk is not None:
            self._rem_chunk -= end - start

    def _explain(self, result: AdmitResult) -> str:
        if result is AdmitResult.CONTINUE:
            return "nothing else waits"
        if result is AdmitResult.NO_TOKEN:
            return f"the next request needs more than the {self._rem_total:.0f} tokens left"
        return (
            f"the step is full: {self._rem_chunk} chunk tokens, {self._rem_input} prompt tokens, "
            f"{self._rem_rows} rows left"
        )


def plan_prefill(
    adder: PrefillAdder, continuing: Request | None, waiting: Iterable[Request]
) -> PrefillPlan:
    """The request that was cut first, then the waiting in order until one does not fit."""
    if continuing is not None:
        adder.add_continuing(continuing)
    result = AdmitResult.CONTINUE
    if closed := adder.closed:
        return adder.plan(closed)
    for request in waiting:
        if (result := adder.add(request)) is not AdmitResult.CONTINUE:
            break
    return adder.plan(result)
