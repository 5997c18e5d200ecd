"""Recent samples and decisions: bounded in time, and never changed in place.

Also what came of them: the share of requests that kept the service's slo, as engines count them. No
decision follows from it. Engines that drain count too, as they finish answers.
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
"""Span of which the share of requests in time is reported."""
GAP_SECONDS: Final = 60.0
"""Longest gap between two ticks within which the load counts as known, if there was work at the
first."""
QUIET_GAP_SECONDS: Final = 150.0
"""The same if there was no work: idle services are looked at every two minutes."""


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
        """Those at `seconds` and later."""
        return (tick for tick in self.ticks if tick.sample.time_seconds >= seconds)

    def with_tick(self, tick: Tick) -> History:
        """This history and one more, without what is older than `KEPT_SECONDS`."""
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
        """The latest."""
        return self.ticks[-1] if self.ticks else None


def _without_engines(tick: Tick) -> Tick:
    """The tick without engine samples: decisions compare engines only with the sample before."""
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
        counted = _increase(old.slo_requests_total, engine.slo_requests_total)
        requests += counted
        in_time += min(counted, _increase(old.slo_in_time_total, engine.slo_in_time_total))
    return Answered(requests, in_time)


def answered_lately(history: History) -> Answered:
    """Requests of the last five minutes. Those that wait and are late count as long as they wait.

    Engines count a late request once, which may be longer ago or before the first sample. So at
    least as many are missed as wait late now.
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
        engine.slo_late_requests or 0 for engine in filter(possible, sample.engines or ())
    )
    return Answered(in_time + max(missed, waiting), in_time)


def _increase(old: int | None, new: int | None) -> int:
    return 0 if old is None or new is None else max(0, new - old)
