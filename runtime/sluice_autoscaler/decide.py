"""How many engines each pool should have: a pure function of what was seen, and decided, lately."""

from __future__ import annotations

import math

from sluice_contract.labels import Role

from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_autoscaler.history import History
from sluice_autoscaler.sample import EngineSample, Sample
from sluice_autoscaler.settings import Settings

DOWN_SECONDS = 60.0
"""A pool shrinks to the most that was wanted in so many seconds."""


def decide(settings: Settings, history: History, sample: Sample) -> Decision:
    """The decision on `sample`; `history`: what came before it."""
    pools = {role: _pool(settings, history, sample, role) for role in settings.pools}
    changes = [pool for pool in pools.values() if pool.desired != pool.current]
    shown = changes or list(pools.values())
    reason = shown[0].reason
    return Decision(pools, reason, "; ".join(pool.message for pool in shown))


def _pool(settings: Settings, history: History, sample: Sample, role: Role) -> PoolDecision:
    limits, current = settings.pools[role], sample.pools[role].replicas
    if sample.engines is None:
        return PoolDecision(role, current, current, "MetricsMissing", f"{role}: no load reports")
    engines = [each for each in sample.engines if each.role is role and each.condition == "ready"]
    work = sum(_work_seconds(each) for each in engines)
    wanted = math.ceil(work / settings.queue_seconds)
    if sample.waiting_requests and not engines:
        wanted = max(wanted, 1)
    before = [
        tick.decision.pools[role].desired
        for tick in history.since(sample.time_seconds - DOWN_SECONDS)
        if role in tick.decision.pools
    ]
    wanted = max(wanted, min(current, max(before, default=current)))
    desired = max(limits.minimum, min(limits.maximum, wanted))
    reason = "QueuedWork" if desired > current else "Idle" if desired < current else "Enough"
    message = f"{role}: {work:.1f} s of work in {len(engines)} engines, {current} → {desired}"
    return PoolDecision(role, current, desired, reason, message)


def _work_seconds(engine: EngineSample) -> float:
    running = engine.running_requests / max(1, engine.max_running_requests)
    return engine.queued_work_seconds + max(running, engine.kv_used)
