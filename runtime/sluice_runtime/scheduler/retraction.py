"""Decides which running requests go back to the queue.

Requests go back if pages for the next decode step are missing (retraction), or to make room for a
far more urgent request (preemption). Preemption takes the lowest priority first, and of equal ones
the newest: as many as the urgent request needs to be admitted, or none. A request is preempted at
most once, so that urgent requests cannot delay it for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice_runtime.scheduler.admission import AdmitResult, PrefillAdder
from sluice_runtime.scheduler.admission_bounds import (
    PrefillHeadroom,
    Unlocking,
)
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request, lock_of, rows_needing_page
from sluice_runtime.scheduler.request_table import reserved_tokens
from sluice_runtime.scheduler.settings import SchedulerSettings

PREEMPTED: Final = "Preempted"
"""Reason of a plan that makes room for an urgent request; no page is missing."""


@dataclass(frozen=True, slots=True)
class RetractionPlan:
    """Requests to send back, in order. `stuck`: the last remaining request, if even alone it cannot
    run."""

    victims: tuple[Request, ...] = ()
    stuck: Request | None = None
    reason: str = "Fits"
    message: str = "the pages of the next decode step are free"

    @property
    def needed(self) -> bool:
        """Whether any request must leave."""
        return bool(self.victims or self.stuck)

    @property
    def short(self) -> bool:
        """Whether pages are missing."""
        return self.needed and self.reason != PREEMPTED


NO_RETRACTION: Final = RetractionPlan()
"""Plan of a step before which no request must leave."""


def plan_retraction(
    running: Sequence[Request],
    prefilling: Request | None,
    needed_pages: int,
    available_pages: int,
    page_size: int,
    in_transfer: Callable[[Request], bool],
    *,
    others_hold: bool = False,
) -> RetractionPlan:
    """Plans which requests free pages for the next decode step: those with the fewest output tokens
    first, then those with the longest input.

    The last running request stays, and takes the pages of the request in prefill if necessary. If
    even that is not enough it is stuck, or goes back to the queue if others hold pages that they
    will give back (`others_hold`). Pages that a transfer uses (`in_transfer`) come free after it,
    so such requests go last, and a prompt that is read stays. `needed_pages`: pages of the next
    decode step, more than `available_pages`.
    """
    message = f"decode needs {needed_pages} pages, {available_pages} are free or cached"
    holders = [*running, *([prefilling] if prefilling else [])]
    read = {request for request in holders if request.transfers and in_transfer(request)}
    order = sorted(running, key=_retraction_order)
    if read:
        order.sort(key=read.__contains__)
    candidates = order[:-1]
    if prefilling and prefilling not in read:
        candidates.append(prefilling)
    victims: list[Request] = []
    unlocking = Unlocking()
    for victim in candidates:
        victims.append(victim)
        if victim not in read:
            available_pages += len(victim.page_ids) - lock_of(victim).pages + victim.reserved_pages
            available_pages += unlocking.add(lock_of(victim))
        needed_pages -= victim is not prefilling and len(rows_needing_page([victim], page_size))
        if needed_pages <= available_pages:
            return RetractionPlan(tuple(victims), None, "PoolFull", message)
    if others_hold or read:
        return RetractionPlan((*victims, order[-1]), None, "PoolFull", message)
    return RetractionPlan(tuple(victims), order[-1], "PoolTooSmall", message)


def may_preempt(
    waiting: Iterable[Request], running: Collection[Request], settings: SchedulerSettings
) -> bool:
    """Whether any waiting request is urgent enough to preempt a running one."""
    if not running:
        return False
    priorities = [request.priority for request in waiting]
    if not priorities:
        return False
    return any(_preemptible(request, max(priorities), settings) for request in running)


def plan_preemption(
    urgent: Request,
    match: Match,
    running: Collection[Request],
    headroom: PrefillHeadroom,
    settings: SchedulerSettings,
    ratio: float,
    adder_in: Callable[[PrefillHeadroom], PrefillAdder],
) -> RetractionPlan:
    """Plans the victims that must leave so that `urgent` is admitted; none if it fits `headroom`
    already.

    `match`: its cached prefix; `ratio`: the new-token ratio; `adder_in`: makes the step's adder for
    a headroom, less the cut prompt's share.
    """

    def admits(headroom: PrefillHeadroom) -> bool:
        adder = adder_in(headroom)
        return not adder.closed and adder.add(urgent, match) is AdmitResult.CONTINUE

    if admits(headroom):
        return NO_RETRACTION
    newest_first = reversed(list(running))
    preemptible = [r for r in newest_first if _preemptible(r, urgent.priority, settings)]
    preemptible.sort(key=lambda r: (r.priority, -(r.started_seconds or 0.0)))
    headrooms = _headrooms(preemptible, Unlocking(match), headroom, settings, ratio)
    for count, larger in enumerate(headrooms, start=1):
        if admits(larger):
            message = f"{urgent.request_id} has priority {urgent.priority}"
            return RetractionPlan(tuple(preemptible[:count]), None, PREEMPTED, message)
    return NO_RETRACTION


def _retraction_order(request: Request) -> tuple[int, int]:
    known = len(request.token_ids)
    return known - request.prompt_tokens, -known


def _preemptible(request: Request, priority: int, settings: SchedulerSettings) -> bool:
    return not request.preempted and priority - request.priority > settings.priority_threshold


def _headrooms(
    victims: Collection[Request],
    unlocking: Unlocking,
    headroom: PrefillHeadroom,
    settings: SchedulerSettings,
    ratio: float,
) -> Iterator[PrefillHeadroom]:
    """The headroom after the first victim has left, then after the first two, and so on."""
    for victim in victims:
        lock = lock_of(victim)
        pages = len(victim.page_ids) - lock.pages + unlocking.add(lock)
        pages += len(rows_needing_page([victim], settings.page_size))
        headroom = replace(
            headroom,
            available_pages=headroom.available_pages + pages,
            reserved_tokens=headroom.reserved_tokens - reserved_tokens([victim], ratio),
            decode_rows=max(0, headroom.decode_rows - 1),
            rows=headroom.rows + 1,
        )
        yield headroom
