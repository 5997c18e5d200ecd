"""Which running requests go back to the queue for one that is far more urgent.

Pure: values in, a frozen plan out. The lowest priority goes first, of equal ones the newest; all
that must go for the urgent one to be admitted, or none: admission itself says when that is. A
request is sent back for others once at most, so that urgent ones cannot keep it from ever ending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from sluice_runtime.scheduler.admission import (
    AdmitResult,
    PrefillAdder,
    Room,
)
from sluice_runtime.scheduler.lock_costs import Unlocking
from sluice_runtime.scheduler.new_token_ratio import reserved_tokens
from sluice_runtime.scheduler.policies import PREEMPTING
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request, lock_of, opening
from sluice_runtime.scheduler.retraction import PREEMPTED, RetractionPlan
from sluice_runtime.scheduler.settings import SchedulerSettings


def may_preempt(
    waiting: Iterable[Request], running: Collection[Request], settings: SchedulerSettings
) -> bool:
    """Whether anyone that waits is so much more urgent than anyone that runs."""
    if settings.policy not in PREEMPTING or not running:
        return False
    priorities = [request.priority for request in waiting]
    if not priorities:
        return False
    most = max(priorities)
    return any(_yields(request, most, settings) for request in running)


def plan_preemption(
    urgent: Request,
    match: Match,
    running: Collection[Request],
    room: Room,
    settings: SchedulerSettings,
    ratio: float,
    opened: Callable[[Room], PrefillAdder],
) -> RetractionPlan:
    """Who goes so that `urgent` is admitted; nobody if it fits `room` as it is. `match` is what is
    cached of it, `ratio` the new-token ratio; `opened` makes the adder of this step with so much
    room, as it is offered to who waits."""

    def admits(room: Room) -> bool:
        adder = opened(room)
        return not adder.closed and adder.add(urgent, match) is AdmitResult.CONTINUE

    if admits(room):
        return RetractionPlan()
    newest_first = reversed(list(running))
    yielding = [r for r in newest_first if _yields(r, urgent.priority, settings)]
    yielding.sort(key=lambda r: (r.priority, -(r.started_seconds or 0.0)))
    rooms = _rooms(yielding, Unlocking(match), room, settings, ratio)
    for count, larger in enumerate(rooms, start=1):
        if admits(larger):
            message = f"{urgent.request_id} has priority {urgent.priority}"
            return RetractionPlan(tuple(yielding[:count]), None, PREEMPTED, message)
    return RetractionPlan()


def _yields(request: Request, priority: int, settings: SchedulerSettings) -> bool:
    return not request.preempted and priority - request.priority > settings.priority_threshold


def _rooms(
    victims: Collection[Request],
    unlocking: Unlocking,
    room: Room,
    settings: SchedulerSettings,
    ratio: float,
) -> Iterator[Room]:
    """The room once the first victim is gone, the first two, and so on."""
    for victim in victims:
        lock = lock_of(victim)
        pages = len(victim.page_ids) - lock.pages + unlocking.add(lock)
        pages += len(opening([victim], settings.page_size))
        room = replace(
            room,
            available_pages=room.available_pages + pages,
            reserved_tokens=room.reserved_tokens - reserved_tokens([victim], ratio),
            decode_rows=max(0, room.decode_rows - 1),
            rows=room.rows + 1,
        )
        yield room
