"""InferenceService → the children it should have. Pure: equal observations, equal plans.

Four steps: which spec is planned, what it asks for (`resolve/`), how the service gets there
(`rollout/`), and the children that this makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.cluster.labels import ROUTER_ROLE

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.plan import Adoption, Identity, Plan, identity
from sluice_operator.delivery.adapters import NO_ADAPTERS, AdapterDelivery
from sluice_operator.delivery.delivery import NO_DELIVERY, Delivery
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    ENGINE_POOL,
    HTTP_ROUTE,
    INFERENCE_POOL,
    INFERENCE_SERVICE,
    JOB,
    OPTIONAL_CHILDREN,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SERVICE,
    SERVICE_CHILDREN,
    Kind,
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
from sluice_operator.manifests.engine_pool import field_paths, pool_replicas
from sluice_operator.manifests.metadata import ROUTER, Owner, owner
from sluice_operator.manifests.monitoring import pod_monitors, prometheus_rule
from sluice_operator.manifests.network import (
    collector_port,
    engine_policy,
    front_service,
    pool_service,
    router_policy,
    share_of,
)
from sluice_operator.manifests.ownership import is_free, is_unowned, owners_with, pool_role
from sluice_operator.manifests.route import http_route, inference_pool, pool_refusal
from sluice_operator.service.names import config_maps_in_use, downloads_in_use
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.plan_events import (
    canary_judged,
    canary_moved,
    created,
    ended_canary_serves,
    leaves_restricted,
    removed,
    replaced,
    rolling_out,
    scaled,
    taken_over,
)
from sluice_operator.service.resolve.handover import key_secrets, policies
from sluice_operator.service.resolve.planned_spec import PlannedSpec, decide_spec
from sluice_operator.service.resolve.resolved_service import ResolvedPool, ResolvedService
from sluice_operator.service.revisions.history import plan_history
from sluice_operator.service.rollout.mode_switch import NO_FORMER, Former, former_manifests
from sluice_operator.service.rollout.planned_rollout import PlannedPool, PlannedRollout, roll_out
from sluice_operator.service.rollout.revisions import pod_changes
from sluice_operator.service.rollout.surge import Rollout

ROUTER_REPLICAS: Final = "spec.router.replicas"


@dataclass(frozen=True)
class ServicePlan(Plan):
    """The plan of an InferenceService."""

    spec: InferenceServiceSpec | None = None
    """Planned spec: the one that was carried out last, while the present one is refused or its
    model is awaited. None where nothing is planned."""
    delivery: Delivery = NO_DELIVERY
    """How far the model of the present spec is on its way."""
    is_kept_waiting: bool = False
    """Whether the present spec asks for other pods than those that run, while it is paused."""
    adapters: AdapterDelivery = NO_ADAPTERS
    """How far adapters of a hub are; engines do not wait for them."""
    pools: tuple[PlannedPool, ...] = ()
    router: Manifest | None = None
    """The routers' Deployment."""
    rollout: Rollout | None = None
    """The roll-out of all pools; None when nothing is planned."""
    former: Former = NO_FORMER
    """Children of another mode that stay for now."""
    former_gpus: int = 0
    """GPUs of the budget that engines of another mode hold, also once their pools have gone."""
    upgrade: tuple[str, ...] = ()
    """Changes that this release of the operator would make, but leaves until the user takes
    them."""

    @property
    def is_accepted(self) -> bool:
        """Whether the present spec is what is planned."""
        waits = self.is_kept_waiting or self.delivery.waiting is not None
        return self.refusal is None and not waits


def plan_service(observed: ServiceObserved) -> ServicePlan:
    """Plan of an InferenceService's children."""
    service = observed.service
    if service["metadata"].get("deletionTimestamp"):
        return ServicePlan()
    top = owner(INFERENCE_SERVICE, service, service["metadata"]["name"])
    decision = decide_spec(observed, top)
    delivery, refusal = decision.delivery, decision.refusal
    if decision.planned is None:
        plan = ServicePlan() if refusal else _first_delivery(observed.children, top, delivery)
    else:
        rollout = roll_out(observed, top, decision.planned.resolved)
        plan = _with_children(observed, top, decision.planned, rollout)
    adopt = tuple(_adoptions(observed.children, top, plan))
    events = (*plan.events, *delivery.events, *taken_over(adopt))
    plan = replace(plan, adopt=adopt, events=events, refusal=refusal, delivery=delivery)
    plan = replace(plan, is_kept_waiting=decision.is_kept_waiting)
    return _paused(plan, observed.children) if decision.is_paused else plan


def _paused(plan: ServicePlan, children: Children) -> ServicePlan:
    """The plan while spec.paused is true. Of a canary alone what is learnt is noted, and one that
    has ended gets no request any more."""
    nothing = replace(plan, secrets=(), apply=(), take_over=(), let_go=(), prune=(), events=())
    nothing = replace(nothing, adopt=(), record=None, paused=True)
    live = {(identity(item), item["revision"]) for item in of_kind(children, CONTROLLER_REVISION)}
    noted, rollout = plan.decided, plan.rollout
    if noted is None or (identity(noted), noted["revision"]) not in live:
        nothing = replace(nothing, decided=None, decision_events=())
    if rollout is None or not rollout.is_ended:
        return nothing
    shares = {identity(item): share_of(item) for item in of_kind(children, SERVICE)}
    services = tuple(
        item for item in plan.apply if (share := shares.get(identity(item))) and share.percent
    )
    text = f"{rollout.message} Its engines stay, as spec.paused is true."
    return replace(nothing, apply=services, rollout=replace(rollout, message=text))


def _first_delivery(children: Children, top: Owner, delivery: Delivery) -> ServicePlan:
    """The plan that brings the model of a service for which nothing was carried out yet."""
    desired = {identity(manifest) for manifest in delivery.manifests}
    prune = tuple(
        reference_to(job, SERVICE_CHILDREN)
        for job in of_kind(children, JOB)
        if _is_ours(job, top) and identity(job) not in desired
    )
    events = created(children, delivery.manifests)
    return ServicePlan(apply=delivery.manifests, prune=prune, events=events)


def _with_children(
    observed: ServiceObserved,
    top: Owner,
    planned: PlannedSpec,
    rollout: PlannedRollout,
) -> ServicePlan:
    """The plan of a spec that is resolved, and whose roll-out is planned."""
    there, former, resolved = observed.children, rollout.former, planned.resolved
    children = _children(observed, top, resolved, rollout)
    conflicts = observed.name_conflicts
    before = resolved.revisions.stable
    former_pools = former_manifests(former, before, top)
    needed = _each_once((*planned.brought, *children, *former_pools), conflicts)
    optional = _each_once(_optional_children(observed, top, planned.spec), conflicts)
    stable = former.stable(before) | dict(rollout.rollout.stable)
    history = plan_history(
        observed.service,
        top,
        resolved.revisions,
        resolved.revision,
        stable,
        planned.written,
        rollout.rollout.learnt,
    )
    prune = _left_over(there, top, (*needed, *optional), former, planned.keep | history.kept)
    pools = {pool.manifest["metadata"]["name"]: pool.manifest for pool in rollout.pools}
    return ServicePlan(
        secrets=key_secrets(there, top, (pool.spec for pool in resolved.pools)),
        decided=history.decided,
        decision_events=canary_judged(rollout.canary, rollout.rollout.learnt),
        apply=(*needed, *optional),
        record=history.record,
        take_over=tuple(
            pool_replicas(top, pool.spec.role, pool.replicas.count)
            for pool in resolved.pools
            if pool.replicas.take_over
        ),
        let_go=tuple(
            pool_replicas(top, pool.spec.role, None)
            for pool in resolved.pools
            if pool.replicas.let_go
        ),
        prune=prune,
        events=(
            *created(there, needed),
            *created(there, optional),
            *scaled(there, pools, planned.spec),
            *rolling_out(there, pools),
            *canary_moved(
                there, needed, rollout.rollout.message, is_ended=rollout.rollout.is_ended
            ),
            *(ended_canary_serves(there, pools) if rollout.serves_ended_canary else ()),
            *leaves_restricted(there, pools),
            *replaced(there, pools, former.pools),
            *removed(there, prune),
            *planned.adapters.events,
        ),
        paths=_paths(planned.spec, rollout),
        spec=planned.spec,
        adapters=planned.adapters,
        pools=rollout.pools,
        router=rollout.router.deployment,
        rollout=rollout.rollout,
        former=former,
        former_gpus=rollout.former_gpus,
        upgrade=tuple(_upgrade(there, top, resolved.pools, rollout)),
    )


def _paths(
    spec: InferenceServiceSpec, rollout: PlannedRollout
) -> dict[Identity, Mapping[str, str]]:
    """Fields of the InferenceService that set the fields of planned objects, by identity."""
    paths = {identity(pool.manifest): field_paths(spec, pool.role) for pool in rollout.pools}
    return {**paths, identity(rollout.router.deployment): {"spec.replicas": ROUTER_REPLICAS}}


def _upgrade(
    children: Children, top: Owner, pools: tuple[ResolvedPool, ...], rollout: PlannedRollout
) -> Iterator[str]:
    """Changes that this release of the operator would make, in words."""
    for pool in pools:
        yield from pool.upgrade
    for pool in pools:
        yield from pod_changes(children, top, pool.spec)
    yield from rollout.router.upgrade


def _children(
    observed: ServiceObserved,
    top: Owner,
    resolved: ResolvedService,
    rollout: PlannedRollout,
) -> tuple[Manifest, ...]:
    """The children that serve, in order: what pods need, then the pods, then what protects them."""
    router, pools, installation = rollout.router, rollout.pools, observed.installation
    spec, canary = resolved.spec, rollout.rollout.canary
    return (
        *accounts(top),
        router_role(top),
        router_role_binding(top),
        *router.config_maps,
        *(pool.config_map for pool in pools),
        *adapters_config_maps(top, spec.model),
        front_service(top),
        *(pool_service(top, pool.role, canary.get(pool.role)) for pool in pools),
        router_policy(
            top,
            installation.api_server_ports,
            installation.operator_namespace,
            collector_port(spec),
        ),
        engine_policy(
            top,
            installation.operator_namespace,
            collector_port(spec),
        ),
        *policies(observed.children, top, spec, resolved.revisions),
        router.deployment,
        *(pool.manifest for pool in pools),
        disruption_budget(top, f"{top.service}-{ROUTER}", ROUTER, ROUTER_ROLE),
    )


def _optional_children(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec
) -> Iterator[Manifest]:
    """Children of kinds that only some clusters have."""
    kinds = observed.optional_kinds
    if POD_MONITOR in kinds:
        yield from pod_monitors(top)
    if PROMETHEUS_RULE in kinds and spec.slo is not None:
        yield prometheus_rule(top, spec.slo, observed.installation.runbook_url_base)
    router = spec.router
    pool = router.inference_pool if router and INFERENCE_POOL in kinds else None
    if pool is not None:
        yield inference_pool(top, pool.endpoint_picker_ref)
    if HTTP_ROUTE in kinds and router is not None and router.route is not None:
        refused = ""
        if pool is not None and (live := _named(observed, HTTP_ROUTE, top.service)):
            refused = pool_refusal(live, router.route, pool.endpoint_picker_ref)
        by_pool = pool is not None and not refused and _has_pool(observed, top)
        yield http_route(top, router.route, by_pool=by_pool, refused=refused)


def _named(observed: ServiceObserved, kind: Kind, name: str) -> Manifest | None:
    items = of_kind(observed.children, kind)
    return next((item for item in items if item["metadata"]["name"] == name), None)


def _has_pool(observed: ServiceObserved, top: Owner) -> bool:
    """Whether the InferencePool is there. While it is refused by the API server, or deleted by
    somebody, a route to it would lead nowhere; a route to the Service always works."""
    pool = _named(observed, INFERENCE_POOL, top.service)
    return pool is not None and not is_being_deleted(pool)


def _each_once(
    manifests: Iterable[Manifest], name_conflicts: tuple[Manifest, ...]
) -> tuple[Manifest, ...]:
    """The first object of each name, without names that belong to somebody else's object."""
    first: dict[Identity, Manifest] = {}
    for manifest in manifests:
        first.setdefault(identity(manifest), manifest)
    taken = set(map(identity, name_conflicts))
    return tuple(manifest for name, manifest in first.items() if name not in taken)


def _left_over(
    children: Children,
    top: Owner,
    apply: tuple[Manifest, ...],
    former: Former,
    keep: frozenset[Identity],
) -> tuple[Reference, ...]:
    """Children that this service controls, or has lost, and no longer needs. A ConfigMap or a claim
    stays while a remaining object mounts it, and access to a hub stays while engines download.
    `keep`: children exempt from pruning."""
    desired = {identity(manifest) for manifest in apply}
    going = {
        pool["metadata"].get("uid")
        for pool in of_kind(children, ENGINE_POOL)
        if _is_ours(pool, top) and not former.has(pool) and identity(pool) not in desired
    }
    remaining = tuple(
        child
        for child in children
        if not going & {child["metadata"].get("uid"), controller_uid(child)}
    )
    roles = {item["spec"]["role"] for item in apply if item["kind"] == ENGINE_POOL.kind}
    in_use = config_maps_in_use(remaining) | downloads_in_use(remaining)
    mounted = {(kind.kind, name) for kind, name in in_use}
    return tuple(
        reference_to(child, (*SERVICE_CHILDREN, *OPTIONAL_CHILDREN))
        for child in children
        if _is_ours(child, top)
        and identity(child) not in desired | mounted | keep
        and not former.has(child)
        and pool_role(child) not in roles
    )


def _is_ours(child: Manifest, top: Owner) -> bool:
    """Whether an unwanted child belongs to the service, so that the plan may remove it."""
    if top.uid is None or is_being_deleted(child):
        return False
    return controller_uid(child) == top.uid or is_unowned(child, top.service)


def _adoptions(children: Children, top: Owner, plan: Plan) -> Iterator[Adoption]:
    """Children that are neither applied nor removed, and whose owner is gone. The plan of each pool
    adopts the pool's own children."""
    if top.uid is None:
        return
    pools = {pool["metadata"]["uid"] for pool in of_kind(children, ENGINE_POOL)}
    applied = {*map(identity, plan.apply), *map(identity, filter(None, (plan.record,)))}
    handled = applied | {Identity(ref.kind.kind, ref.name) for ref in plan.prune}
    for child in children:
        is_own = pool_role(child) is None and identity(child) not in handled
        if is_own and is_free(child, top.service, {top.uid, *pools}):
            yield Adoption(child, owners_with(child, top))
