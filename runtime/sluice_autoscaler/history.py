"""Recent samples and decisions: an immutable value, limited in time.

It also gives the share of requests that kept the service's slo, from engines' counts; no decision
uses it. Draining engines count too, since they finish answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sluice_autoscaler.decision import Answered, Decision
from sluice_autoscaler.reports import possible
from sluice_autoscaler.sample import Sample

KEPT_SECONDS: Final = 600.0
IN_TIME_SECONDS: Final = 300.0
"""Period over which the share of requests in time is reported."""
GAP_SECONDS: Final = 60.0
"""Longest gap between two ticks across which the load counts as known, if there was work at the
first tick."""
QUIET_GAP_SECONDS: Final = 150.0
"""Longest gap across which the load counts as known, if there was no work: idle services are looked
at every two minutes."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A sample and what was decided on it."""

    sample: Sample
    decision: Decision

    @property
    def busy(self) -> bool:
        """Whether the service had anything to do."""
        return any(pool.measured.busy for pool in self.decision.pools.values())


@dataclass(frozen=True, slots=True)
class History:
    """Ticks, the oldest first."""

    ticks: tuple[Tick, ...] = ()

    def since(self, seconds: float) -> Iterator[Tick]:
        """Ticks at `seconds` and later."""
        return (tick for tick in self.ticks if tick.sample.time_seconds >= seconds)

    def with_tick(self, tick: Tick) -> History:
        """This history with one more tick, and without ticks older than `KEPT_SECONDS`."""
        oldest = tick.sample.time_seconds - KEPT_SECONDS
        kept = [*self.since(oldest), tick]
        if len(kept) > 1:
            kept[-2] = _without_engines(kept[-2])
        return History(tuple(kept))

    def covers(self, since: float, now: float) -> bool:
        """Whether the load is known from `since` until `now` without a gap, e.g. of a restarted
        operator."""
        before = [tick for tick in self.ticks if tick.sample.time_seconds <= since][-1:]
        if not before:
            return False
        covering = [*before, *(t for t in self.ticks if t.sample.time_seconds > since)]
        ends = [*(tick.sample.time_seconds for tick in covering[1:]), now]
        return all(
            end - tick.sample.time_seconds <= (GAP_SECONDS if tick.busy else QUIET_GAP_SECONDS)
            for tick, end in zip(covering, ends, strict=True)
            if end > since
        )

    @property
    def last(self) -> Tick | None:
        """The latest tick; None if there is none."""
        return self.ticks[-1] if self.ticks else None


def _without_engines(tick: Tick) -> Tick:
    """The tick without engine samples, which only the next decision needs."""
    engines = None if tick.sample.engines is None else ()
    return replace(tick, sample=replace(tick.sample, engines=engines))


def answered_since(before: Sample | None, sample: Sample) -> Answered:
    """Requests that engines counted between two samples. An engine counts from its second one."""
    earlier = {engine.name: engine for engine in (before.engines if before else None) or ()}
    requests = in_time = 0
    for engine in sample.engines or ():
        old = earlier.get(engine.name)
        if old is None or old.epoch != engine.epoch or not (possible(old) and possible(engine)):
            continue
        if old.slo is None or engine.slo is None:
            continue
        counted = max(0, engine.slo.requests - old.slo.requests)
        requests += counted
        in_time += min(counted, max(0, engine.slo.in_time - old.slo.in_time))
    return Answered(requests, in_time)


def answered_lately(history: History) -> Answered:
    """Requests of the last five minutes, including late requests that still wait.

    Engines count a late request once, maybe more than five minutes ago or before the first sample.
    So the number of missed requests is at least the number that wait late now.
    """
    if history.last is None:
        return Answered()
    sample = history.last.sample
    counted = [
        tick.decision.answered for tick in history.since(sample.time_seconds - IN_TIME_SECONDS)
    ]
    in_time = sum(answered.in_time for answered in counted)
    missed = sum(answered.requests for answered in counted) - in_time
    waiting = sum(
        engine.slo.late for engine in filter(possible, sample.engines or ()) if engine.slo
    )
    return Answered(in_time + max(missed, waiting), in_time)
