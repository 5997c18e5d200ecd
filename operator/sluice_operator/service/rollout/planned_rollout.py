"""The roll-out of a service: of all its pools together, with its routers and what stays of another
mode. Pure.

It plans how many engines each revision of each pool should have, and an EnginePool's own plan
carries that out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice_contract.cluster.labels import Role

from sluice_operator.accelerators.find import AcceleratorFinding
from sluice_operator.api.pool import RevisionShare
from sluice_operator.kube.kinds import SERVICE, Manifest, of_kind
from sluice_operator.manifests.engine_pool import engine_pool
from sluice_operator.manifests.metadata import Owner
from sluice_operator.manifests.network import share_of
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.resolve.replicas import former_pools
from sluice_operator.service.resolve.resolved_service import ResolvedPool, ResolvedService
from sluice_operator.service.resolve.router import PlannedRouter, plan_router
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.revisions.settings import Settings
from sluice_operator.service.rollout.canary import canary_of
from sluice_operator.service.rollout.gpu_budget import (
    PlanRollout,
    budget_of,
    plan_within,
    pod_surges,
)
from sluice_operator.service.rollout.in_place import plan_in_place
from sluice_operator.service.rollout.lent_gpus import announced_first, says_interrupted
from sluice_operator.service.rollout.mode_switch import Former, are_awaited, plan_former
from sluice_operator.service.rollout.revisions import pool_state, replaces_pods
from sluice_operator.service.rollout.surge import Rollout, plan_rollout


@dataclass(frozen=True)
class PlannedPool:
    """One planned pool, and why it is sized as it is."""

    role: Role
    replicas: int
    accelerator: AcceleratorFinding
    settings: Settings
    config_map: Manifest
    manifest: Manifest


@dataclass(frozen=True)
class PlannedRollout:
    """How a service gets to the resolved pools, and what stays meanwhile."""

    rollout: Rollout
    """Roll-out of all pools."""
    canary: CanaryState
    """How far the canary of the present revision was before this plan."""
    serves_ended_canary: bool
    """Whether engines of a canary that has ended serve, as the former ones are gone."""
    pools: tuple[PlannedPool, ...]
    router: PlannedRouter
    former: Former
    """Children of another mode that stay for now."""
    former_gpus: int
    """GPUs of the budget that engines of another mode hold, also once their pools have gone."""


def roll_out(
    observed: ServiceObserved,
    top: Owner,
    resolved: ResolvedService,
) -> PlannedRollout:
    """The next step towards what is resolved."""
    service, children, spec = observed.service, observed.children, resolved.spec
    pools, stable = resolved.pools, resolved.revisions.stable
    states = tuple(pool_state(children, pool.spec, pool.config_map) for pool in pools)
    budget, former = budget_of(observed, spec), former_pools(service, children, spec)
    state = resolved.revisions.canary_of(resolved.revision)
    # Routers use the pools of one mode, so there is no canary beside pools of another.
    canary = None if former else canary_of(resolved.spec, state)
    is_open = canary is not None and canary.is_open(states, stable)
    plan = canary.plan if canary and is_open else _strategy(resolved)
    rollout = plan_within(states, stable, plan, budget)
    if canary and is_open:
        live = {share_of(service) for service in of_kind(children, SERVICE)} - {None}
        has_shares = live == {*rollout.canary.values()}
        looks = observed.looks if has_shares else ()
        may_pass = not service["spec"].get("paused")
        rollout = canary.judged(rollout, observed.engines, looks, may_pass)
        learnt = (rollout.learnt or canary.state).noted(canary.spec.steps)
        recorded = resolved.revision.state.canary
        rollout = replace(rollout, learnt=None if learnt == recorded else learnt)
    elif canary:
        rollout = canary.with_shares(rollout, states, stable)
    waits = are_awaited(children, spec, states, former)
    before = resolved.revisions.router_of_other_mode(spec.mode)
    router = plan_router(observed, top, spec, resolved.revision.router, waits=waits, before=before)
    # Pools that the routers do not use yet serve no request.
    rollout = announced_first(
        states, rollout, is_announced=router.is_former or says_interrupted(service)
    )
    # In place, no engine comes in addition to another.
    surge_budget = None if spec.replaces_in_place else budget
    replaced = {
        pool.spec.role for pool in pools if surge_budget and replaces_pods(children, top, pool.spec)
    }
    surges = pod_surges(states, rollout, surge_budget, replaced)
    return PlannedRollout(
        rollout=rollout,
        canary=canary.state if canary else state,
        serves_ended_canary=bool(canary and canary.serves_though_ended(states, stable)),
        pools=tuple(_pool(top, pool, rollout, surges.get(pool.spec.role)) for pool in pools),
        router=router,
        former=plan_former(observed, states, former, router, stable.keys()),
        former_gpus=budget.former_gpus if budget else 0,
    )


def _strategy(resolved: ResolvedService) -> PlanRollout:
    """How revisions replace each other without a canary."""
    return plan_in_place if resolved.spec.replaces_in_place else plan_rollout


def _pool(
    top: Owner, resolved: ResolvedPool, rollout: Rollout, pod_surge: int | None
) -> PlannedPool:
    role = resolved.spec.role
    shares = rollout.shares[role]
    revisions = [RevisionShare(name=name, replicas=count) for name, count in shares.items()]
    numbers = {"revisions": revisions, "pod_surge": pod_surge}
    spec = resolved.spec.model_copy(update=numbers)
    return PlannedPool(
        role=spec.role,
        replicas=spec.replicas,
        accelerator=resolved.accelerator,
        settings=resolved.settings,
        config_map=resolved.config_map,
        manifest=engine_pool(top, spec, sets_replicas=resolved.replicas.is_applied),
    )
