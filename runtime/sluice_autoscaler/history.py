"""What was seen and decided lately: bounded in time, and never changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.decision import Decision
from sluice_autoscaler.sample import Sample

KEPT_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A sample and what was decided on it."""

    sample: Sample
    decision: Decision


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
        return History((*self.since(oldest), tick))
