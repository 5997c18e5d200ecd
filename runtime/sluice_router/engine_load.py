"""How loaded an engine is, by its last report and by what this router has sent it since.

Load is a share: requests in the engine, also in its queues of the hand-over, per request it can run
at once, plus the seconds its queued prompts will take (a second of queued prefill weighs as much as
a full batch). An engine without a page to give counts as full. Requests of this router are counted
as they are now, those of others as the last report has them. An engine without a fresh report is
neither preferred nor avoided: it counts as the average of the others of its role. Knows no
clock and no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_router.engines import EngineState, condition

FULL: Final = 1.0
"""The load from which a request has to wait."""


def reported_load(engine: EngineState, now: float, stale_seconds: float) -> float | None:
    """Load by a fresh report, with our own requests counted live; None without one. An
    engine without a page to give is full.

    The report already holds the requests we had there when it was made; only what others sent is
    taken from it, and ours are counted as they are now.
    """
    received = engine.fresh(now, stale_seconds)
    if received is None:
        return None
    report = received.report
    others = max(0, report.requests - received.own_inflight)
    share = (others + engine.inflight) / max(1, report.max_running_requests)
    if not report.has_pages:
        share = max(FULL, share)
    return share + max(0.0, report.queued_work_seconds)


def has_room(engine: EngineState) -> bool:
    """Whether it takes one more request, by its last report and with our own requests counted live:
    of an older engine, which does not say how many may wait, whether it would run at once."""
    received = engine.received
    if received is None:
        return False
    report = received.report
    requests = max(0, report.requests - received.own_inflight) + engine.inflight
    queue = report.max_queued_requests
    if queue is None:
        return report.has_pages and requests < report.max_running_requests
    return report.queued_requests < queue and requests < report.max_running_requests + queue


@dataclass(frozen=True, slots=True)
class Average:
    """The average engine: its load, its slots, and how many of our requests it has."""

    load: float
    slots: float
    inflight: float
    stale_seconds: float


def load_of(engine: EngineState, now: float, average: Average) -> float:
    """Load by a fresh report; without one, the average and what we sent it beyond that."""
    known = reported_load(engine, now, average.stale_seconds)
    if known is not None:
        return known
    return average.load + max(0.0, engine.inflight - average.inflight) / average.slots


def average_load(engines: Sequence[EngineState], now: float, stale_seconds: float) -> Average:
    """Of those among the engines that are ready and have a fresh report; nobody asks for it when
    all have one, and it is not computed."""
    if all(engine.fresh(now, stale_seconds) is not None for engine in engines):
        return Average(load=0.0, slots=1.0, inflight=0.0, stale_seconds=stale_seconds)
    known = [
        (load, engine)
        for engine in engines
        if (load := reported_load(engine, now, stale_seconds)) is not None
        and condition(engine, now) == "ready"
    ]
    if not known:
        return Average(load=0.0, slots=1.0, inflight=0.0, stale_seconds=stale_seconds)
    count = len(known)
    return Average(
        load=sum(load for load, _ in known) / count,
        slots=sum(_slots(engine) for _, engine in known) / count,
        inflight=sum(engine.inflight for _, engine in known) / count,
        stale_seconds=stale_seconds,
    )


def _slots(engine: EngineState) -> int:
    received = engine.received
    return max(1, received.report.max_running_requests) if received is not None else 1
