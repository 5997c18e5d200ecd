"""Scaling to zero and back: all pools of a service together, since a request needs each of them."""

from __future__ import annotations

from collections.abc import Mapping

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.history import History
from sluice_autoscaler.measured import Measured, has_work
from sluice_autoscaler.reports import possible
from sluice_autoscaler.sample import Sample
from sluice_autoscaler.settings import ScalingSettings


def is_busy(sample: Sample, measured: Mapping[Role, Measured]) -> bool:
    """Whether the service has work, or had some since the previous sample. A missing or impossible
    report counts as work."""
    if sample.waiting_requests or sample.engines is None:
        return True
    if any(not possible(engine) or has_work(engine) for engine in sample.engines):
        return True
    return any(pool.arrived_seconds or pool.finished_requests for pool in measured.values())


def least_engines(
    settings: ScalingSettings, history: History, sample: Sample, busy: bool
) -> dict[Role, int]:
    """The fewest engines of each pool: its minimum, but at least one until the service has been
    idle long enough, and while another pool keeps an engine. A service without any engine counts as
    idle, even with a short history."""
    pools, now = settings.pools, sample.time_seconds
    if not busy and all(
        pool.minimum == 0 and sample.pools[role].replicas == 0 for role, pool in pools.items()
    ):
        return dict.fromkeys(pools, 0)
    if not _idle(settings, history, now, busy) or any(pool.minimum for pool in pools.values()):
        return {role: max(1, pool.minimum) for role, pool in pools.items()}
    return dict.fromkeys(pools, 0)


def is_asleep(settings: ScalingSettings, sample: Sample) -> bool:
    """Whether a pool has no engine, so that nothing can be served."""
    return any(sample.pools[role].replicas == 0 for role in settings.pools)


def _idle(settings: ScalingSettings, history: History, now: float, busy: bool) -> bool:
    since = now - settings.idle_seconds
    if busy or not history.covers(since, now):
        return False
    return not any(tick.busy for tick in history.since(since))
