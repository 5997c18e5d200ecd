"""How many engines each pool should have: a pure function of recent samples and decisions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.budget import Claim, allotted
from sluice_autoscaler.decision import Answered, Decision, Margin, Move, PoolDecision
from sluice_autoscaler.decision import engines as counted_engines
from sluice_autoscaler.history import History, answered_since
from sluice_autoscaler.margin import next_margin
from sluice_autoscaler.measured import Measured
from sluice_autoscaler.pool_plan import (
    PoolPlan,
    hold_reason,
    on_hold,
    planned,
    seen_of,
    start_message,
)
from sluice_autoscaler.reports import Reports, possible
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_autoscaler.scale_to_zero import is_asleep, is_busy, least_engines
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_autoscaler.trade import Needs, joint_needs, lasting_needs, traded
from sluice_autoscaler.wants import promise_of

Seen = Mapping[Role, tuple[Reports, Measured]]
TWO_POOLS: Final = (Role.PREFILL, Role.DECODE)
ROLE_CHANGE_SECONDS: Final = 2.0
"""Seconds that an engine without work takes to change its role."""


def decide(settings: ScalingSettings, history: History, sample: Sample) -> Decision:
    """The decision on `sample`; `history`: earlier samples and decisions. First each pool is
    planned by its load, within its limits; then all pools are fitted into the budget."""
    sample = _timed(history, sample)
    seen = {role: seen_of(history, sample, role) for role in settings.pools}
    busy = is_busy(sample, {role: measured for role, (_, measured) in seen.items()})
    plans = _plans(settings, history, sample, seen, busy)
    engines = _within_budget(settings, history, sample, plans)
    move = move_of(settings, sample, plans, engines)
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
    if move is not None:
        pools |= _with_move(pools, plans, move)
    answered = answered_since(history.last.sample if history.last else None, sample)
    changes = [pool for pool in pools.values() if pool.desired != pool.current]
    shown = changes or sorted(pools.values(), key=lambda pool: pool.reason == "Enough")
    return Decision(
        pools,
        shown[0].reason,
        "; ".join(pool.message for pool in shown),
        answered,
        _margin(settings, history, sample, seen, answered),
        move,
    )


def _margin(
    settings: ScalingSettings, history: History, sample: Sample, seen: Seen, answered: Answered
) -> Margin:
    """The margin for the next decision."""
    former = history.last.decision.margin if history.last else Margin()
    is_clear = (
        sample.engines is not None
        and not _outage(sample)
        and all(map(_is_settled, sample.pools.values()))
        and not any(reports.unknown or reports.sick for reports, _ in seen.values())
    )
    allowed_share = 1 - promise_of(settings).share
    return next_margin(former, sample.time_seconds, answered, allowed_share, is_clear=is_clear)


def _timed(history: History, sample: Sample) -> Sample:
    """`sample`, with the previous sample's time if it has none."""
    if math.isfinite(sample.time_seconds):
        return sample
    last = history.last
    return replace(sample, time_seconds=last.sample.time_seconds if last else 0.0, engines=None)


def _plans(
    settings: ScalingSettings, history: History, sample: Sample, seen: Seen, busy: bool
) -> dict[Role, PoolPlan]:
    least = least_engines(settings, history, sample, busy)
    wakes = is_asleep(settings, sample) and sample.waiting_requests
    outage = _outage(sample) if any(least.values()) else ""
    plans = {}
    for role, limits in settings.pools.items():
        pool = sample.pools[role]
        why = hold_reason(seen[role][0], pool, sample)
        if wakes and not pool.replicas:
            text = f"{sample.waiting_requests} requests wait for the first engine"
            plans[role] = PoolPlan(max(1, limits.minimum), 1, "WaitingRequests", text)
        elif why is not None:
            plans[role] = on_hold(settings, limits, pool, why)
        else:
            plan = planned(settings, history, sample, role, seen[role], least[role])
            plans[role] = _without_scale_in(plan, limits, pool, outage) if outage else plan
    return plans


def _needs(settings: ScalingSettings, seen: Seen, plans: Mapping[Role, PoolPlan]) -> Needs:
    """Needs of two pools whose load is known; empty otherwise."""
    needs = {role: plan.need for role, plan in plans.items() if plan.need is not None}
    if len(needs) < len(TWO_POOLS):
        return {}
    return joint_needs(settings, {role: now for role, (_, now) in seen.items()}, needs)


def _within_budget(
    settings: ScalingSettings, history: History, sample: Sample, plans: Mapping[Role, PoolPlan]
) -> dict[Role, int]:
    """Engines of each pool. If the budget is too small for both pools, their recent needs decide
    which pool gets the next engine, and which gives one up."""
    budget = settings.gpu_budget
    needs = lasting_needs(settings, history, sample.time_seconds) if budget is not None else None
    claims = _claims(settings, sample, plans, needs or {})
    engines = allotted(claims, budget)
    if budget is None or needs is None:
        return engines
    return engines | traded(claims, needs, engines, budget)


def _claims(
    settings: ScalingSettings, sample: Sample, plans: Mapping[Role, PoolPlan], needs: Needs
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
    settings: ScalingSettings,
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
    if desired > pool.replicas:
        message += f"; {start_message(measured, pool)}"
    leaving = pool.replicas + pool.moving - desired - pool.starting - pool.unschedulable
    victims = victims_of(sample.engines or (), role, leaving)
    return PoolDecision(
        role, pool.replicas, desired, reason, message, victims, plan.wanted, measured
    )


def move_of(
    settings: ScalingSettings,
    sample: Sample,
    plans: Mapping[Role, PoolPlan],
    engines: Mapping[Role, int],
) -> Move | None:
    """Engines that one pool gives up and the other lacks: they change roles, instead of ending
    while others start. A move loads no weights and needs no free GPU, but the engines must finish
    their requests first. None: there are no such engines, or a move does not pay. `engines`: each
    pool's engines by the budget, without a move."""
    if not settings.engines_move or not all(map(_is_settled, sample.pools.values())):
        return None
    for source, target in (TWO_POOLS, TWO_POOLS[::-1]):
        if source not in engines or target not in engines or not engines[source]:
            continue
        surplus = sample.pools[source].replicas - engines[source]
        size = _target_size(settings, engines, target, plans[target].desired, surplus)
        count = min(surplus, size - sample.pools[target].replicas)
        if count > 0 and sample.pools[target].ready and _pays(plans[source], plans[target]):
            return Move(source, target, count, size)
    return None


def _is_settled(pool: PoolSample) -> bool:
    """Whether all pods of the pool serve and no others hold GPUs. Otherwise a starting or ending
    engine could be mistaken for a moving one."""
    return pool.ready == pool.replicas and not (pool.starting or pool.unschedulable or pool.surplus)


def _target_size(
    settings: ScalingSettings, engines: Mapping[Role, int], target: Role, desired: int, surplus: int
) -> int:
    """Size, up to `desired`, that the target pool can have with the GPUs of `surplus` engines of
    the other pool."""
    more = max(0, min(desired - engines[target], surplus))
    gpus = settings.pools[target].gpus
    if settings.gpu_budget is not None and gpus:
        used_gpus = sum(count * settings.pools[role].gpus for role, count in engines.items())
        more = min(more, max(0, settings.gpu_budget - used_gpus) // gpus)
    return engines[target] + more


def _pays(source: PoolPlan, target: PoolPlan) -> bool:
    """Whether starting an engine takes longer, by measurement, than draining one and changing its
    role."""
    if target.start_seconds is None or source.drain_seconds is None:
        return False
    return target.start_seconds > source.drain_seconds + ROLE_CHANGE_SECONDS


def _with_move(
    pools: Mapping[Role, PoolDecision], plans: Mapping[Role, PoolPlan], move: Move
) -> dict[Role, PoolDecision]:
    """`pools` with both pools of a move changed by it."""
    source, target = pools[move.source], pools[move.target]
    count = counted_engines(move.engines, ("moves", "move"))
    text = f"{target.role}: {plans[target.role].message}; {count} here from {source.role}"
    text += f": {target.current} → {move.target_engines}"
    return {
        source.role: replace(source, message=f"{source.message}; {count} to {target.role}"),
        target.role: replace(
            target,
            desired=move.target_engines,
            reason=plans[target.role].reason,
            message=text,
            victims=(),
        ),
    }


def _lacking(plans: Mapping[Role, PoolPlan], engines: Mapping[Role, int], role: Role) -> list[Role]:
    """Other pools that get fewer engines than they need."""
    return [other for other in plans if other is not role and engines[other] < plans[other].desired]


def _outage(sample: Sample) -> str:
    """Reason why engine reports miss load: requests wait at the routers, or a pool has no ready
    engine; empty if they show all load."""
    down = [role for role, pool in sample.pools.items() if pool.replicas and not pool.ready]
    if down:
        return f"no engine of {' and '.join(down)} is ready"
    if sample.waiting_requests:
        return f"{sample.waiting_requests} requests wait for an engine"
    return ""


def _without_scale_in(
    plan: PoolPlan, limits: PoolLimits, pool: PoolSample, outage: str
) -> PoolPlan:
    """`plan` without shrinking. Its `wanted` is cleared, so that later decisions do not use it."""
    fewer = plan.wanted is not None and plan.wanted < pool.replicas
    if plan.desired > pool.replicas or not fewer:
        return replace(plan, wanted=None)
    desired = max(limits.minimum, min(limits.maximum, pool.replicas))
    return PoolPlan(desired, None, "NoEngineReady", f"{outage}; holds")


def victims_of(engines: Iterable[EngineSample], role: Role, count: int) -> tuple[str, ...]:
    """The names of `count` engines to remove: those that no longer serve first, then those with the
    least work. Engines that are already leaving are not considered."""
    able = [engine for engine in engines if engine.role is role and engine.condition != "draining"]
    return tuple(engine.name for engine in sorted(able, key=_work)[: max(0, count)])


def _work(engine: EngineSample) -> tuple[bool, int, float, str]:
    """Sort key: serving engines come last, the most loaded at the end. An engine with an impossible
    report may have any load, so it comes after all with a known load."""
    serves = engine.condition == "ready"
    if not possible(engine):
        return serves, 2**62, 0.0, engine.name
    return serves, engine.figures.requests, engine.figures.kv_used, engine.name
