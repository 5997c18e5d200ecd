"""Which engine gets the next request: a pure function of what is known now.

Load is a share: requests in the engine per request it can run at once, plus the seconds its queued
prompts will take (a second of queued prefill weighs as much as a full batch). An engine without a
fresh report is neither preferred nor shunned: it counts as the average of the others. Knows no
clock and no network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from sluice_router.engines import EngineState, condition

Reason = Literal[
    "LeastLoaded", "NoEngines", "NoneReady", "AllDraining", "AllFailing", "AllTried"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to ask, or why there is none."""

    engine: EngineState | None
    reason: Reason
    message: str


def pick(
    engines: Sequence[EngineState],
    now: float,
    *,
    stale_seconds: float,
    tried: Collection[str] = (),
) -> Choice:
    """The least loaded engine that takes new requests and is not among the keys in `tried`."""
    ready = [engine for engine in engines if condition(engine, now) == "ready"]
    candidates = [engine for engine in ready if engine.key not in tried]
    if not candidates:
        return _nobody(engines, ready, now)
    neutral = _average_load(engines, now, stale_seconds)

    def order(engine: EngineState) -> tuple[float, float, str]:
        return _load(engine, now, stale_seconds, neutral), engine.picked_seconds, engine.key

    chosen = min(candidates, key=order)
    load = order(chosen)[0]
    message = f"{chosen.endpoint.name}: load {load:.2f}, the least of {len(candidates)}"
    return Choice(chosen, "LeastLoaded", message)


def reported_load(engine: EngineState, now: float, stale_seconds: float) -> float | None:
    """Load by a fresh report, with our own requests counted live; None without one.

    The report already holds the requests we had there when it was made; only what others sent is
    taken from it, and ours are counted as they are now.
    """
    received = engine.fresh(now, stale_seconds)
    if received is None:
        return None
    report = received.report
    reported = report.queued_requests + report.running_requests
    others = max(0, reported - received.own_inflight)
    slots = max(1, report.max_running_requests)
    return (others + engine.inflight) / slots + max(0.0, report.queued_work_seconds)


def _load(engine: EngineState, now: float, stale_seconds: float, neutral: _Neutral) -> float:
    known = reported_load(engine, now, stale_seconds)
    if known is not None:
        return known
    return neutral.load + max(0.0, engine.inflight - neutral.inflight) / neutral.slots


@dataclass(frozen=True, slots=True)
class _Neutral:
    """The average engine: its load, its slots, and how many of our requests it has."""

    load: float
    slots: float
    inflight: float


def _average_load(engines: Sequence[EngineState], now: float, stale_seconds: float) -> _Neutral:
    known = [
        (load, engine)
        for engine in engines
        if (load := reported_load(engine, now, stale_seconds)) is not None
        and condition(engine, now) == "ready"
    ]
    if not known:
        return _Neutral(load=0.0, slots=1.0, inflight=0.0)
    count = len(known)
    slots = sum(_slots(engine) for _, engine in known)
    inflight = sum(engine.inflight for _, engine in known)
    return _Neutral(sum(load for load, _ in known) / count, slots / count, inflight / count)


def _slots(engine: EngineState) -> int:
    received = engine.received
    return max(1, received.report.max_running_requests) if received is not None else 1


def _nobody(engines: Sequence[EngineState], ready: Sequence[EngineState], now: float) -> Choice:
    if ready:
        return Choice(None, "AllTried", f"usable engines, all tried: {len(ready)}")
    if not engines:
        return Choice(None, "NoEngines", "the service has no engines")
    conditions = [condition(engine, now) for engine in engines]
    if failing := conditions.count("failing"):
        return Choice(None, "AllFailing", f"engines that failed just now: {failing}")
    if unready := conditions.count("unready"):
        return Choice(None, "NoneReady", f"engines not ready yet: {unready}")
    return Choice(None, "AllDraining", f"engines draining: {len(conditions)}")
