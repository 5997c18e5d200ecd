"""Which engines had best go when a pool shrinks. Knows nothing of pods that are not ready."""

from __future__ import annotations

from collections.abc import Iterable

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.reports import possible
from sluice_autoscaler.sample import EngineSample


def victims_of(engines: Iterable[EngineSample], role: Role, count: int) -> tuple[str, ...]:
    """The names of `count` engines: those that serve nothing any more first, then those with the
    least work. Engines that leave already are nobody's choice."""
    able = [each for each in engines if each.role is role and each.condition != "draining"]
    return tuple(each.name for each in sorted(able, key=_work)[: max(0, count)])


def _work(engine: EngineSample) -> tuple[bool, int, float, str]:
    """Who serves comes last, the most loaded at the end; an engine whose report cannot be true may
    have any load, so it comes behind all whose load is known."""
    serves = engine.condition == "ready"
    if not possible(engine):
        return serves, 2**62, 0.0, engine.name
    requests = engine.queued_requests + engine.running_requests + engine.inflight_requests
    return serves, requests, engine.kv_used, engine.name
