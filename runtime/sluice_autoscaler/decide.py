"""How many engines each pool should have: a pure function of what was seen, and decided, lately."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.budget import Claim, allotted
from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_autoscaler.history import History
from sluice_autoscaler.measured import Measured
from sluice_autoscaler.outage import kept, outage_of
from sluice_autoscaler.pool_plan import PoolPlan, held, hold_reason, planned, seen_of
from sluice_autoscaler.reports import Reports
from sluice_autoscaler.sample import Sample
from sluice_autoscaler.settings import Settings
from sluice_autoscaler.trade import Needs, joint_needs, lasting_needs, traded
from sluice_autoscaler.victims import victims_of
from sluice_autoscaler.zero import is_asleep, is_busy, least_engines

Seen = Mapping[Role, tuple[Reports, Measured]]
TWO_POOLS: Final = (Role.PREFILL, Role.DECODE)


def decide(settings: Settings, history: History, sample: Sample) -> Decision:
    """The decision on `sample`; `history`: what came before it. All pools together: each by its
    load, within its limits; then all within the budget."""
    sample = _timed(history, sample)
    seen = {role: seen_of(history, sample, role) for role in settings.pools}
    busy = is_busy(sample, {role: measured for role, (_, measured) in seen.items()})
    plans = _plans(settings, history, sample, seen, busy)
    engines = _within_budget(settings, history, sample, plans)
    needs = _needs(settings, seen, plans)
    pools = {
        role: _decided(
            settings,
            sample,
            plans,
            engines,
            role,
            replace(seen[role][1], busy=busy, need_engines=needs.get(role)),
        )
        for role in settings.pools
    }
    changes = [pool for pool in pools.values() if pool.desired != pool.current]
    shown = changes or sorted(pools.values(), key=lambda pool: pool.reason == "Enough")
    return Decision(pools, shown[0].reason, "; ".join(pool.message for pool in shown))


def _timed(history: History, sample: Sample) -> Sample:
    """A sample without a time of its own is of the moment of the one before it."""
    if math.isfinite(sample.time_seconds):
        return sample
    last = history.last
    return replace(sample, time_seconds=last.sample.time_seconds if last else 0.0, engines=None)


def _plans(
    settings: Settings, history: History, sample: Sample, seen: Seen, busy: bool
) -> dict[Role, PoolPlan]:
    least = least_engines(settings, history, sample, busy)
    wakes = is_asleep(settings, sample) and sample.waiting_requests
    outage = outage_of(sample) if any(least.values()) else ""
    plans = {}
    for role, limits in settings.pools.items():
        pool = sample.pools[role]
        why = hold_reason(seen[role][0], pool, sample)
        if wakes and not pool.replicas:
            text = f"{sample.waiting_requests} requests wait for the first engine"
            plans[role] = PoolPlan(max(1, limits.minimum), 1, "WaitingRequests", text)
        elif why is not None:
            plans[role] = held(settings, limits, pool, why)
        else:
            plan = planned(settings, history, sample, role, seen[role], least[role])
            plans[role] = kept(plan, limits, pool, outage) if outage else plan
    return plans


def _needs(settings: Settings, seen: Seen, plans: Mapping[Role, PoolPlan]) -> Needs:
    """Of two pools whose load is known."""
    needs = {role: plan.need for role, plan in plans.items() if plan.need is not None}
    if len(needs) < len(TWO_POOLS):
        return {}
    return joint_needs(settings, {role: now for role, (_, now) in seen.items()}, needs)


def _within_budget(
    settings: Settings, history: History, sample: Sample, plans: Mapping[Role, PoolPlan]
) -> dict[Role, int]:
    """Engines of each pool. Where the budget is too small for both pools, what they needed of late
    says who gets the next engine, and who gives one up."""
    budget = settings.gpu_budget
    needs = lasting_needs(settings, history, sample.time_seconds) if budget is not None else None
    claims = _claims(settings, sample, plans, needs or {})
    engines = allotted(claims, budget)
    if budget is None or needs is None:
        return engines
    return engines | traded(claims, needs, engines, budget)


def _claims(
    settings: Settings, sample: Sample, plans: Mapping[Role, PoolPlan], needs: Needs
) -> dict[Role, Claim]:
    claims = {}
    for role, limits in settings.pools.items():
        pool, plan = sample.pools[role], plans[role]
        claims[role] = Claim(
            current=pool.replicas,
            desired=plan.desired,
            minimum=limits.minimum,
            gpus=limits.gpus,
            surplus=pool.surplus,
            unplaced=pool.unschedulable,
            wanted=needs.get(role, plan.desired if plan.wanted is None else plan.wanted),
        )
    return claims


def _decided(
    settings: Settings,
    sample: Sample,
    plans: Mapping[Role, PoolPlan],
    engines: Mapping[Role, int],
    role: Role,
    measured: Measured,
) -> PoolDecision:
    pool, plan, desired = sample.pools[role], plans[role], engines[role]
    reason, message = plan.reason, f"{role}: {plan.message}"
    if desired < plan.desired:
        reason = "BudgetExhausted"
        message += f"; {settings.gpu_budget} GPUs are all that the service may hold"
        if desired < min(pool.replicas, plan.desired) and (
            others := _lacking(plans, engines, role)
        ):
            reason = "GivesWay"
            message += f", and {' and '.join(others)} lacks them more"
    message += f": {pool.replicas} → {desired}" if desired != pool.replicas else ": no change"
    leaving = pool.replicas - desired - pool.starting - pool.unschedulable
    victims = victims_of(sample.engines or (), role, leaving)
    return PoolDecision(
        role, pool.replicas, desired, reason, message, victims, plan.wanted, measured
    )


def _lacking(plans: Mapping[Role, PoolPlan], engines: Mapping[Role, int], role: Role) -> list[Role]:
    """The other pools that do not get what they ask for."""
    return [each for each in plans if each is not role and engines[each] < plans[each].desired]
