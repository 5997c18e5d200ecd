"""A pool without a usable engine gets no work, which says nothing of the work there is.

So while requests wait at the routers, or a pool has none of its engines ready, no pool shrinks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sluice_autoscaler.pool_plan import PoolPlan
from sluice_autoscaler.sample import PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits

NO_ENGINE_READY: Final = "NoEngineReady"


def outage_of(sample: Sample) -> str:
    """Why the load that is seen is not the load there is, in words; empty if it is."""
    down = [role for role, pool in sample.pools.items() if pool.replicas and not pool.ready]
    if down:
        return f"no engine of {' and '.join(down)} is ready"
    if sample.waiting_requests:
        return f"{sample.waiting_requests} requests wait for an engine"
    return ""


def kept(plan: PoolPlan, limits: PoolLimits, pool: PoolSample, outage: str) -> PoolPlan:
    """`plan` without a loss of engines. What was wanted does not count for later decisions."""
    fewer = plan.wanted is not None and plan.wanted < pool.replicas
    if plan.desired > pool.replicas or not fewer:
        return replace(plan, wanted=None)
    desired = max(limits.minimum, min(limits.maximum, pool.replicas))
    return PoolPlan(desired, None, NO_ENGINE_READY, f"{outage}; holds")
