"""Status of planned children of an InferenceService: the pools, the routers, and what clients use.

Pure; `now` bounds how long something may take. The state below a pool is read from the EnginePool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sluice_operator.api.conditions import (
    ACCELERATOR_VERIFIED,
    ADAPTERS_LOADED,
    MODEL_AVAILABLE,
    NETWORK_ISOLATED,
    PRIORITIES_COUNT,
    PROGRESSING,
    READY,
    RECONCILING,
    ROUTER_READY,
    SCALING_ACTIVE,
    STALLED,
    UPDATED,
    UPGRADE_AVAILABLE,
    Check,
)
from sluice_operator.api.service import InferenceServiceSpec, Mode, roles_of
from sluice_operator.apply.applier import Refused
from sluice_operator.apply.plan import Identity, identity
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import apply_failed, progressing, unowned
from sluice_operator.conditions.pods import UNSCHEDULABLE
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    SERVICE,
    Manifest,
    controller_uid,
    of_kind,
)
from sluice_operator.scaled import Scaling
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.plan import ServicePlan
from sluice_operator.service.report.accelerator_verified import (
    accelerator_verified,
    first_unverified,
    with_missing_node,
)
from sluice_operator.service.report.part_status import (
    APPLYING,
    MISSING,
    StatusPart,
    adapters_loaded,
    current_pool,
    engines_text,
    former_summaries,
    live_child,
    model_available,
    pool_part,
    pool_summary,
    pool_updated,
    ready_of,
    router_part,
    serves,
    up_to_date,
)
from sluice_operator.service.report.priorities_count import priorities_check
from sluice_operator.service.report.progressing import (
    canary_stays,
    halted_check,
    interrupts_check,
    lost_gpus,
    moves_check,
    stalled_check,
)
from sluice_operator.service.report.route_accepted import optional_checks
from sluice_operator.service.report.scaling import scaling_check
from sluice_operator.service.revisions.settings import settings_status
from sluice_operator.service.rollout.pairing import paired
from sluice_operator.service.rollout.planned_rollout import PlannedPool


@dataclass(frozen=True)
class StatusParts:
    """Parts of a status that depend on whether children are planned."""

    facts: Manifest
    """Fields of the status: mode, url, pools and the like."""
    checks: Mapping[str, Check]
    """Checks by type of condition."""
    applied: int | None
    """The last generation of the spec that was carried out."""


def planned_status(
    observed: ServiceObserved,
    plan: ServicePlan,
    obstacle: Check | None,
    refused: tuple[Refused, ...],
    scaling: Scaling | None,
    now: datetime,
) -> StatusParts:
    """The status of planned children, which may be those of an earlier spec. `obstacle`: why the
    present spec is not carried out."""
    assert plan.spec is not None
    service, children = observed.service, observed.children
    before = service.get("status") or {}
    front = Identity(SERVICE.kind, service["metadata"]["name"])
    is_made = apply_failed(refused) is None and front in map(identity, plan.apply)
    fronts = () if is_made else (_front(service, children),)
    checks = _checks(observed, plan, obstacle, fronts, scaling, now)
    checks |= optional_checks(observed, plan, refused)
    facts, applied = _facts(service, children, plan, plan.spec), before.get("appliedGeneration")
    if plan.is_accepted and not plan.paused and not any(r.keeps_pods for r in refused):
        applied = service["metadata"].get("generation", 0)
    elif applied is not None and "resolved" in before:
        facts["resolved"] = before["resolved"]  # still in use
    return StatusParts(facts, checks, applied)


def _facts(
    service: Manifest, children: Children, plan: ServicePlan, spec: InferenceServiceSpec
) -> Manifest:
    meta, mode = service["metadata"], _mode_served(plan, spec)
    pools = {pool.role: _summary(children, pool) for pool in plan.pools}
    return {
        "mode": mode,
        "url": f"http://{meta['name']}.{meta.get('namespace', 'default')}.svc",
        **_counted(children, mode),
        "summary": engines_text(former_summaries(plan.former) or pools),
        "pools": {role.value: summary for role, summary in pools.items()},
        "resolved": {pool.role.value: settings_status(pool.settings) for pool in plan.pools},
        **_handover(children, plan),
    }


def _counted(children: Children, mode: Mode) -> Manifest:
    """The engines that `spec.replicas` counts, as the EnginePool that serves them says."""
    role = roles_of(mode)[-1]
    pools = (pool for pool in of_kind(children, ENGINE_POOL) if pool["spec"]["role"] == role)
    status = next((pool.get("status") or {} for pool in pools), {})
    return {key: status[key] for key in ("replicas", "selector") if key in status}


def _handover(children: Children, plan: ServicePlan) -> Manifest:
    """Hand-over as the decode pool reports it; empty before it reports, and without the pool."""
    live = (live_child(children, ENGINE_POOL, pool.manifest) for pool in plan.pools)
    reported = ((pool or {}).get("status", {}).get("handover") for pool in live)
    return next(({"handover": handover} for handover in reported if handover), {})


def _mode_served(plan: ServicePlan, spec: InferenceServiceSpec) -> Mode:
    """The mode that is served: the former one until the routers use the pools of the desired
    mode."""
    if not plan.former.is_served:
        return spec.mode
    return "Mixed" if spec.is_disaggregated else "Disaggregated"


def _summary(children: Children, pool: PlannedPool) -> Manifest:
    live = live_child(children, ENGINE_POOL, pool.manifest)
    return pool_summary(live, pool.replicas, pool.accelerator.text)


def _checks(
    observed: ServiceObserved,
    plan: ServicePlan,
    obstacle: Check | None,
    front: tuple[Check, ...],
    scaling: Scaling | None,
    now: datetime,
) -> dict[str, Check]:
    children = observed.children
    parts = _parts(children, observed.pods, plan, now)
    ready = {kind: part.ready for kind, part in parts.items()}
    updated = obstacle or canary_stays(plan) or lost_gpus(observed, plan, now)
    updated = updated or up_to_date(parts.values())
    if updated.is_true:
        name, paused = observed.service["metadata"]["name"], plan.paused
        updated = unowned(children, observed.foreign, name, paused=paused) or updated
    former = {ready_of(pool["spec"]["role"]): _former(pool) for pool in plan.former.pools}
    serve = former | {ROUTER_READY: ready[ROUTER_READY]} if plan.former.is_served else ready
    pair = paired(_served(children, plan), children, updated)
    serving = serves((*front, *serve.values(), pair), obstacle)
    stalled = stalled_check(children, plan, parts[ROUTER_READY], updated)
    moves, priorities = moves_check(plan, updated, stalled), priorities_check(plan)
    halted = halted_check(children, plan, stalled) if plan.is_accepted else None
    available = model_available(
        {pool.role: live_child(children, ENGINE_POOL, pool.manifest) for pool in plan.pools}
    )
    return {
        READY: serving,
        UPDATED: updated,
        PROGRESSING: interrupts_check(plan) or halted or progressing(moves, updated),
        **former,
        **ready,
        MODEL_AVAILABLE: available,
        **_adapters(children, plan),
        **_where_it_says_something(
            {
                ACCELERATOR_VERIFIED: first_unverified(
                    accelerator_verified(pool, live_child(children, ENGINE_POOL, pool.manifest))
                    for pool in plan.pools
                ),
                SCALING_ACTIVE: scaling_check(observed.service, plan, scaling),
                UPGRADE_AVAILABLE: _upgrade(plan),
                PRIORITIES_COUNT: priorities,
                NETWORK_ISOLATED: observed.isolation,
                STALLED: stalled,
            }
        ),
        RECONCILING: moves,
    }


def _where_it_says_something(checks: Mapping[str, Check | None]) -> dict[str, Check]:
    return {kind: check for kind, check in checks.items() if check is not None}


def _front(service: Manifest, children: Children) -> Check:
    """Whether the service's own Service for clients exists."""
    name, uid = (service["metadata"][key] for key in ("name", "uid"))
    for item in of_kind(children, SERVICE):
        if item["metadata"]["name"] == name and controller_uid(item) == uid:
            return Check("True", reasons.SERVING, f"There is the Service {name}.")
    return Check("False", MISSING, f"Service {name}: not there, and not made as things are.")


def _adapters(children: Children, plan: ServicePlan) -> dict[str, Check]:
    if plan.spec is None or plan.spec.model.adapters is None:
        return {}
    loaded = adapters_loaded({pool.role: current_pool(children, pool) for pool in plan.pools})
    return {ADAPTERS_LOADED: plan.adapters.check or loaded}


def _served(children: Children, plan: ServicePlan) -> Iterator[Manifest]:
    """The live pools that the routers use."""
    if plan.former.is_served:
        yield from plan.former.pools
        return
    for pool in plan.pools:
        if live := live_child(children, ENGINE_POOL, pool.manifest):
            yield live


def _parts(
    children: Children, routers: tuple[Manifest, ...], plan: ServicePlan, now: datetime
) -> dict[str, StatusPart]:
    """How the parts are doing, by the condition that says so."""
    assert plan.router is not None
    waiting = waiting_check(plan)
    router = live_child(children, DEPLOYMENT, plan.router)
    inherited = {role: plan.spec.inherited(role) for role in plan.spec.roles} if plan.spec else {}
    pools = {
        ready_of(pool.role): _pool(children, pool, waiting, inherited.get(pool.role, ()))
        for pool in plan.pools
    }
    return pools | {ROUTER_READY: router_part(plan.router, router, routers, waiting, now)}


def _pool(
    children: Children, pool: PlannedPool, waiting: Check, inherited: tuple[str, ...]
) -> StatusPart:
    live = live_child(children, ENGINE_POOL, pool.manifest)
    updated = pool_updated(pool.role, current_pool(children, pool), waiting)
    if updated.reason == UNSCHEDULABLE and inherited:
        text = f"{updated.message} This pool inherits {', '.join(inherited)}."
        updated = replace(updated, message=text)
    return pool_part(pool.role, live, pool.replicas, with_missing_node(updated, pool))


def _former(pool: Manifest) -> Check:
    """The state of a pool of another mode that stays for now."""
    role, desired = pool["spec"]["role"], pool["spec"].get("replicas", 1)
    return pool_part(role, pool, desired, pool_updated(role, pool, APPLYING)).ready


def waiting_check(plan: ServicePlan) -> Check:
    """Updated, for a part that is not as planned yet."""
    if plan.paused:
        text = "the new spec waits, because spec.paused is true."
        return Check("False", reasons.PAUSED, text)
    if not plan.is_accepted:
        text = "the spec that was carried out last is being applied."
        return Check("False", reasons.APPLYING, text)
    return APPLYING


def _upgrade(plan: ServicePlan) -> Check | None:
    """What this release would change; None: nothing."""
    if not plan.upgrade:
        return None
    text = f"This release of the operator would change: {'; '.join(plan.upgrade)}."
    text += " It does with the next change of the spec that restarts these pods, or with another"
    return Check("True", "ChangesWait", f"{text} value of spec.rollout.upgrade.")
