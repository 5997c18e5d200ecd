"""How long engines take to start: measured from the decision to the first ready engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.history import Tick
from sluice_autoscaler.sample import Sample

STARTUP_SECONDS: Final = 30.0
"""Assumed until a start was measured."""


@dataclass(frozen=True, slots=True)
class StartupTime:
    """Of one pool."""

    seconds: float | None
    """The last measured start; None before any."""
    asked_seconds: float | None
    """When the awaited engines were requested; None: none are awaited."""


def startup_of(last: Tick | None, sample: Sample, role: Role) -> StartupTime:
    """The start-up time known at `sample`, from the tick before it."""
    if last is None or role not in last.decision.pools:
        return StartupTime(None, None)
    measured, decided = last.decision.pools[role].measured, last.decision.pools[role]
    before, now = last.sample.pools[role], sample.pools[role]
    growth_since = measured.growth_asked_seconds
    if growth_since is None and decided.desired > decided.current:
        growth_since = last.sample.time_seconds
    if growth_since is not None and now.ready > before.ready:
        return StartupTime(sample.time_seconds - growth_since, None)
    arrived = now.ready >= now.replicas and decided.desired <= now.replicas
    return StartupTime(measured.boot_seconds, None if arrived else growth_since)
