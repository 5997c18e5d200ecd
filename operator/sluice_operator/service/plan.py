"""InferenceService → the children it should have. Pure: equal observations, equal plans.

Knows no pods: `rollout/` plans how many engines each revision of each pool should have, and an
EnginePool's own plan carries that out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from sluice_contract import labels
from sluice_contract.labels import FETCH_ROLE, ROUTER_ROLE, Role

from sluice_operator.accelerators.find import AcceleratorFinding
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.pool import RevisionShare
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.plan import Plan, identity
from sluice_operator.conditions import reasons
from sluice_operator.delivery.adapters import NO_ADAPTERS, AdapterDelivery
from sluice_operator.delivery.delivery import NO_DELIVERY, Delivery
from sluice_operator.delivery.resolved_model import pinned, pinned_at, spec_with_commit
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    HTTP_ROUTE,
    INFERENCE_SERVICE,
    JOB,
    OPTIONAL_CHILDREN,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SERVICE_CHILDREN,
    Manifest,
    Reference,
    controller_uid,
    is_being_deleted,
    of_kind,
    reference_to,
)
from sluice_operator.manifests.accounts import accounts, router_role, router_role_binding
from sluice_operator.manifests.adapters import adapters_config_maps
from sluice_operator.manifests.disruption import disruption_budget
from sluice_operator.manifests.engine_pool import engine_pool, pool_replicas
from sluice_operator.manifests.metadata import ROUTER, Owner, owner
from sluice_operator.manifests.monitoring import pod_monitors
from sluice_operator.manifests.network import (
    collector_port,
    engine_policy,
    front_service,
    pool_service,
    router_policy,
)
from sluice_operator.manifests.route import http_route
from sluice_operator.manifests.slo_rules import prometheus_rule
from sluice_operator.manifests.spec_history import applied_record
from sluice_operator.service.names import config_maps_in_use, downloads_in_use
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan_events import (
    created,
    leaves_restricted,
    removed,
    rolling_out,
    scaled,
)
from sluice_operator.service.resolve.handover import key_secrets, policies
from sluice_operator.service.resolve.last_applied import last_applied
from sluice_operator.service.resolve.model import adapters_of, delivery_of, kept_delivery
from sluice_operator.service.resolve.pools import ResolvedPool, contradictions, resolve_pool
from sluice_operator.service.resolve.replicas import former_pools
from sluice_operator.service.resolve.router import PlannedRouter, plan_router
from sluice_operator.service.resolve.settings import Settings
from sluice_operator.service.rollout.gpu_budget import budget_of, plan_within, pod_surges
from sluice_operator.service.rollout.in_place import plan_in_place
from sluice_operator.service.rollout.mode_switch import (
    NO_FORMER,
    Former,
    are_awaited,
    former_manifests,
    plan_former,
)
from sluice_operator.service.rollout.revisions import (
    pod_changes,
    pool_state,
    replaces_pods,
    stable_revisions,
)
from sluice_operator.service.rollout.spec_history import plan_history
from sluice_operator.service.rollout.surge import (
    Rollout,
    plan_rollout,
)
from sluice_operator.validation.errors import invalid, joined, validation_errors
from sluice_operator.validation.refusal import Refusal


@dataclass(frozen=True)
class PlannedPool:
    """One pool as the plan wants it, and why it is sized as it is."""

    role: Role
    replicas: int
    accelerator: AcceleratorFinding
    settings: Settings
    config_map: Manifest
    manifest: Manifest


@dataclass(frozen=True)
class ServicePlan(Plan):
    """The plan of an InferenceService."""

    spec: InferenceServiceSpec | None = None
    """What is planned: the spec that was carried out last while the present one is refused, or its
    model awaited. None when nothing is."""
    delivery: Delivery = NO_DELIVERY
    """How far the model of the present spec is on its way."""
    adapters: AdapterDelivery = NO_ADAPTERS
    """How far adapters of a hub are; engines do not wait for them."""
    pools: tuple[PlannedPool, ...] = ()
    router: Manifest | None = None
    """The routers' Deployment."""
    rollout: Rollout | None = None
    """The roll-out of all pools; None when nothing is planned."""
    former: Former = NO_FORMER
    """What stays for now of another mode."""
    former_gpus: int = 0
    """GPUs of the budget that engines of another mode hold, also once their pools have gone."""
    upgrade: tuple[str, ...] = ()
    """What this release of the operator would change, and leaves until it is taken."""


def plan_service(observed: ServiceObserved) -> ServicePlan:
    """What the children of an InferenceService should be."""
    service = observed.service
    if service["metadata"].get("deletionTimestamp"):
        return ServicePlan()
    check = partial(contradictions, observed)
    try:
        given = parse(InferenceServiceSpec, service.get("spec") or {}, "spec")
    except InvalidSpecError as error:
        return _kept(observed, joined(invalid(error, check)))
    spec = pinned(given, service)
    if found := validation_errors(spec, check):
        return _kept(observed, joined(found))
    if observed.name_conflicts and not spec.paused:
        return _kept(observed, _name_taken(observed.name_conflicts))
    top = owner(INFERENCE_SERVICE, service, service["metadata"]["name"])
    delivery = delivery_of(observed, top, given)
    if delivery.refusal is not None or delivery.waiting is not None:
        return _kept(observed, delivery.refusal, delivery)
    adapters = adapters_of(observed, top, given)
    brought = (*delivery.manifests, *adapters.manifests)
    plan = _desired(observed, top, spec, brought, adapters)
    plan = replace(plan, apply=(*plan.apply, *_record(service, top)), delivery=delivery)
    return _paused(plan) if spec.paused else plan


def _record(service: Manifest, top: Owner) -> Iterable[Manifest]:
    """Of the spec, once the status says that it was carried out."""
    applied = (service.get("status") or {}).get("appliedGeneration")
    if applied is not None and applied == service["metadata"].get("generation"):
        yield applied_record(top, spec_with_commit(service))


def _kept(
    observed: ServiceObserved, refusal: Refusal | None, delivery: Delivery = NO_DELIVERY
) -> ServicePlan:
    """While the spec is refused, or its model awaited: what was carried out last, with the numbers
    of the spec, and the way of the model beside it."""
    service = observed.service
    top = owner(INFERENCE_SERVICE, service, service["metadata"]["name"])
    given = last_applied(service, observed.children)
    spec = given and pinned_at(given, service, given.model.revision)
    if given is None or spec is None or any(contradictions(observed, spec)):
        plan = ServicePlan() if refusal else _awaiting(observed, delivery)
    else:
        brought, adapters = kept_delivery(observed, top, given, delivery)
        plan = _desired(observed, top, spec, brought, adapters, _downloads(observed, delivery))
        plan = replace(plan, events=(*plan.events, *delivery.events))
    plan = replace(plan, refusal=refusal, delivery=delivery)
    return _paused(plan) if (service.get("spec") or {}).get("paused") else plan


def _paused(plan: ServicePlan) -> ServicePlan:
    nothing = replace(plan, secrets=(), apply=(), take_over=(), let_go=(), prune=(), events=())
    return replace(nothing, paused=True)


def _downloads(observed: ServiceObserved, delivery: Delivery) -> frozenset[tuple[str, str]]:
    """What brings models and stays while the spec is not carried out: a typo ends no download."""
    return frozenset(
        identity(child)
        for child in observed.children
        if (child["metadata"].get("labels") or {}).get(labels.ROLE) == FETCH_ROLE
        and not (delivery.manifests and child["kind"] == JOB.kind)
    )


def _awaiting(observed: ServiceObserved, delivery: Delivery) -> ServicePlan:
    """Brings the first model."""
    wanted = {identity(manifest) for manifest in delivery.manifests}
    prune = tuple(
        reference_to(job, SERVICE_CHILDREN)
        for job in of_kind(observed.children, JOB)
        if _is_pruned(observed, job) and identity(job) not in wanted
    )
    events = (*created(observed.children, delivery.manifests), *delivery.events)
    return ServicePlan(apply=delivery.manifests, prune=prune, events=events)


def _desired(
    observed: ServiceObserved,
    top: Owner,
    spec: InferenceServiceSpec,
    brought: tuple[Manifest, ...],
    adapters: AdapterDelivery,
    stays: frozenset[tuple[str, str]] = frozenset(),
) -> ServicePlan:
    """The plan of `spec`, with what is `brought` for models; `stays`: what is not pruned."""
    resolved = tuple(resolve_pool(observed, top, spec, role) for role in spec.roles)
    states = tuple(pool_state(observed.children, each.spec, each.config_map) for each in resolved)
    strategy = plan_in_place if spec.replaces_in_place else plan_rollout
    stable, budget = (
        stable_revisions(observed.service, observed.children),
        budget_of(observed, spec),
    )
    rollout = plan_within(states, stable, strategy, budget)
    room = None if spec.replaces_in_place else budget
    replaced = {
        each.spec.role
        for each in resolved
        if room and replaces_pods(observed.children, top, each.spec)
    }
    surges = pod_surges(states, rollout, room, replaced)
    pools = tuple(_pool(top, each, rollout, surges.get(each.spec.role)) for each in resolved)
    before = former_pools(observed.service, observed.children, spec)
    waits = are_awaited(observed.children, spec, states, before)
    router = plan_router(observed, top, spec, waits=waits)
    former = plan_former(observed, states, before, router)
    children = _children(observed, top, spec, router, pools)
    needed = _once(observed, (*brought, *children, *former_manifests(former)))
    optional = _once(observed, (*_monitoring(observed, top, spec), *_route(observed, top, spec)))
    apply = (*needed, *optional)
    history = plan_history(observed.service, observed.children, top)
    prune = _left_over(observed, apply, former, stays | history.kept)
    wanted = {pool.manifest["metadata"]["name"]: pool.manifest for pool in pools}
    events = (
        *created(observed.children, needed),
        *created(observed.children, optional),
        *scaled(observed.children, wanted),
        *rolling_out(observed.children, wanted),
        *leaves_restricted(observed.children, wanted),
        *removed(prune),
        *adapters.events,
    )
    return ServicePlan(
        secrets=key_secrets(
            observed.children, top, router.deployment, (each.spec for each in resolved)
        ),
        apply=(*needed, *history.newest, *optional),
        take_over=tuple(
            pool_replicas(top, each.spec.role, each.replicas.count)
            for each in resolved
            if each.replicas.take_over
        ),
        let_go=tuple(
            pool_replicas(top, each.spec.role, None) for each in resolved if each.replicas.let_go
        ),
        prune=prune,
        events=events,
        spec=spec,
        adapters=adapters,
        pools=pools,
        router=router.deployment,
        rollout=rollout,
        former=former,
        former_gpus=budget.former_gpus if budget else 0,
        upgrade=(
            *(change for each in resolved for change in each.upgrade),
            *(
                change
                for each in resolved
                for change in pod_changes(observed.children, top, each.spec)
            ),
            *router.upgrade,
        ),
    )


def _children(
    observed: ServiceObserved,
    top: Owner,
    spec: InferenceServiceSpec,
    router: PlannedRouter,
    pools: tuple[PlannedPool, ...],
) -> tuple[Manifest, ...]:
    """What it needs to serve, in order: what pods need, then the pods, then what protects them."""
    return (
        *accounts(top),
        router_role(top),
        router_role_binding(top),
        *router.config_maps,
        *(pool.config_map for pool in pools),
        *adapters_config_maps(top, spec.model),
        front_service(top),
        *(pool_service(top, pool.role) for pool in pools),
        router_policy(
            top,
            observed.installation.api_server_ports,
            observed.installation.operator_namespace,
            collector_port(spec),
        ),
        engine_policy(top, observed.installation.operator_namespace, collector_port(spec)),
        *policies(observed.children, top, spec),
        router.deployment,
        *(pool.manifest for pool in pools),
        disruption_budget(top, f"{top.service}-{ROUTER}", ROUTER, ROUTER_ROLE),
    )


def _monitoring(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec
) -> Iterable[Manifest]:
    if POD_MONITOR in observed.optional_kinds:
        yield from pod_monitors(top)
    if PROMETHEUS_RULE in observed.optional_kinds and spec.slo is not None:
        yield prometheus_rule(top, spec.slo, observed.installation.runbook_url_base)


def _route(observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec) -> Iterable[Manifest]:
    route = spec.router.route if spec.router else None
    if HTTP_ROUTE in observed.optional_kinds and route is not None:
        yield http_route(top, route)


def _pool(
    top: Owner, resolved: ResolvedPool, rollout: Rollout, pod_surge: int | None
) -> PlannedPool:
    role = resolved.spec.role
    shares, stable = rollout.shares[role], rollout.stable.get(role, "")
    revisions = [RevisionShare(name=name, replicas=count) for name, count in shares.items()]
    numbers = {"revisions": revisions, "pod_surge": pod_surge}
    spec = resolved.spec.model_copy(update=numbers)
    return PlannedPool(
        role=spec.role,
        replicas=spec.replicas,
        accelerator=resolved.accelerator,
        settings=resolved.settings,
        config_map=resolved.config_map,
        manifest=engine_pool(top, spec, stable, sets_replicas=resolved.replicas.is_applied),
    )


def _once(observed: ServiceObserved, manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """The first of each name, but none that is another's object."""
    found: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        found.setdefault(identity(manifest), manifest)
    taken = set(map(identity, observed.name_conflicts))
    return tuple(manifest for name, manifest in found.items() if name not in taken)


def _left_over(
    observed: ServiceObserved,
    apply: Iterable[Manifest],
    former: Former,
    stays: frozenset[tuple[str, str]],
) -> tuple[Reference, ...]:
    """What this service controls and no longer wants, nor needs for now. A ConfigMap or a claim
    stays while anything that stays mounts it, and the way to a hub while engines download."""
    uid = observed.service["metadata"].get("uid")
    wanted = {identity(manifest) for manifest in apply}
    going = {
        pool["metadata"].get("uid")
        for pool in of_kind(observed.children, ENGINE_POOL)
        if controller_uid(pool) == uid and not former.has(pool) and identity(pool) not in wanted
    }
    remaining = tuple(
        child
        for child in observed.children
        if not going & {child["metadata"].get("uid"), controller_uid(child)}
    )
    in_use = config_maps_in_use(remaining) | downloads_in_use(remaining)
    mounted = {(kind.kind, name) for kind, name in in_use}
    return tuple(
        reference_to(child, (*SERVICE_CHILDREN, *OPTIONAL_CHILDREN))
        for child in observed.children
        if _is_pruned(observed, child)
        and identity(child) not in wanted | mounted | stays
        and not former.has(child)
    )


def _is_pruned(observed: ServiceObserved, child: Manifest) -> bool:
    """Whether a child that is not wanted is the service's to remove."""
    uid = observed.service["metadata"].get("uid")
    return uid is not None and controller_uid(child) == uid and not is_being_deleted(child)


def _name_taken(conflicts: tuple[Manifest, ...]) -> Refusal:
    names = ", ".join(f"{kind} {name}" for kind, name in map(identity, conflicts))
    return Refusal(
        reasons.NAME_TAKEN,
        "metadata.name",
        f"metadata.name: {names} exists and is not this service's; choose another name for the "
        "service, or delete it",
    )
