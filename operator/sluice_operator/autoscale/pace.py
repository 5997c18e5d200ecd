"""When a service need not be looked at every two seconds. Pure."""

from __future__ import annotations

from sluice_autoscaler.decision import Decision
from sluice_autoscaler.sample import EngineSample, Sample
from sluice_autoscaler.settings import Settings


def is_quiet(settings: Settings, sample: Sample, decision: Decision) -> bool:
    """Whether only a request can change what is decided: nothing runs or waits, every pool has the
    fewest engines, and its pods are as they should be."""
    if sample.engines is None or sample.waiting_requests or decision.changes:
        return False
    least = all(
        sample.pools[role].replicas == limits.minimum for role, limits in settings.pools.items()
    )
    settled = all(
        pool.ready == pool.replicas and not pool.surplus for pool in sample.pools.values()
    )
    return least and settled and all(map(_is_idle, sample.engines))


def _is_idle(engine: EngineSample) -> bool:
    handed_over = engine.bootstrap_requests + engine.inflight_requests
    handed_over += engine.prealloc_requests + engine.transfer_requests
    return not (engine.running_requests or engine.queued_requests or handed_over)
