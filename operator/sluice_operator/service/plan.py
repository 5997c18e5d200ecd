"""InferenceService → the children it should have. Pure: equal observations, equal plans.

Decides no numbers of replicas and knows no pods: an EnginePool's own plan does what is below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice_contract.labels import ROUTER_ROLE, Role
from sluice_contract.router_config import (
    Discovery,
    RouterConfig,
    RouterServer,
    render_router_config,
)

from sluice_operator.accelerators import AcceleratorFinding, find_accelerator
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec, RouterSpec
from sluice_operator.manifests.accounts import accounts, router_role, router_role_binding
from sluice_operator.manifests.config_map import ENGINE_FILE, ROUTER_FILE, config_map
from sluice_operator.manifests.disruption import disruption_budget
from sluice_operator.manifests.engine_pool import engine_pool, pool_spec
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner, owner
from sluice_operator.manifests.network import (
    engine_policy,
    front_service,
    pool_service,
    router_policy,
)
from sluice_operator.manifests.router import RouterDeployment, router_deployment
from sluice_operator.observed import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    SERVICE_CHILDREN,
    Images,
    Manifest,
    Plan,
    Reference,
    Refusal,
    ServiceObserved,
    controller_uid,
    of_kind,
    reference_to,
)
from sluice_operator.service.objections import invalid, joined, objections
from sluice_operator.service.plan_events import created, identity, removed, scaled
from sluice_operator.service.settings import (
    Settings,
    drain_seconds,
    engine_file,
    pinned_settings,
)


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
    """None when the spec cannot be read."""
    pools: tuple[PlannedPool, ...] = ()
    router: Manifest | None = None
    """The routers' Deployment."""


def plan_service(observed: ServiceObserved) -> ServicePlan:
    """What the children of an InferenceService should be."""
    service = observed.service
    if service["metadata"].get("deletionTimestamp"):
        return ServicePlan()
    try:
        spec = parse(InferenceServiceSpec, service.get("spec") or {}, "spec")
    except InvalidSpecError as error:
        return ServicePlan(refusal=joined(invalid(observed, error)))
    if found := objections(observed, spec):
        return ServicePlan(refusal=joined(found), spec=spec)
    plan = _desired(observed, spec)
    if observed.foreign:
        return ServicePlan(refusal=_taken(observed.foreign), spec=spec)
    if spec.paused:
        return replace(plan, apply=(), prune=(), events=(), paused=True)
    return plan


def _desired(observed: ServiceObserved, spec: InferenceServiceSpec) -> ServicePlan:
    top = owner(INFERENCE_SERVICE, observed.service, observed.service["metadata"]["name"])
    pools = tuple(_pool(observed, top, spec, role) for role in spec.roles)
    router_file = _router_config_map(top, spec)
    router = _router(top, spec, router_file["metadata"]["name"], observed.images)
    budget = disruption_budget(top, f"{top.service}-{ROUTER}", ROUTER, ROUTER_ROLE)
    apply = (
        *accounts(top),
        router_role(top),
        router_role_binding(top),
        router_file,
        *(pool.config_map for pool in pools),
        front_service(top),
        *(pool_service(top, pool.role) for pool in pools),
        router_policy(top, observed.api_server_ports),
        engine_policy(top),
        router,
        budget,
        *(pool.manifest for pool in pools),
    )
    prune = _left_over(observed, apply)
    wanted = {pool.manifest["metadata"]["name"]: pool.manifest for pool in pools}
    events = (
        *created(observed.children, apply),
        *scaled(observed.children, wanted),
        *removed(prune),
    )
    return ServicePlan(
        apply=apply, prune=prune, events=events, spec=spec, pools=pools, router=router
    )


def _pool(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec, role: Role
) -> PlannedPool:
    accelerator = find_accelerator(spec.pool(role), observed.nodes)
    pinned = pinned_settings(observed.service, role)
    file = engine_file(spec, role, accelerator.accelerator, pinned)
    config = config_map(top, ENGINE_FILE, file.text, ENGINE, role)
    wanted = pool_spec(top.service, spec, role, observed.images.engine, config["metadata"]["name"])
    return PlannedPool(
        role=role,
        replicas=wanted.replicas,
        accelerator=accelerator,
        settings=file.settings,
        config_map=config,
        manifest=engine_pool(top, wanted),
    )


def _router_config_map(top: Owner, spec: InferenceServiceSpec) -> Manifest:
    config = RouterConfig(
        discovery=Discovery(service=top.service, roles=spec.roles),
        server=RouterServer(drain_seconds=drain_seconds(spec)),
    )
    return config_map(top, ROUTER_FILE, render_router_config(config), ROUTER, ROUTER_ROLE)


def _router(top: Owner, spec: InferenceServiceSpec, file: str, images: Images) -> Manifest:
    router = spec.router or RouterSpec()
    lame_duck = int(RouterServer().lame_duck_seconds)
    wanted = RouterDeployment(
        replicas=router.replicas,
        image=router.image or images.router,
        config_map=file,
        resources=router.resources,
        shutdown_seconds=lame_duck + drain_seconds(spec),
    )
    return router_deployment(top, wanted)


def _left_over(observed: ServiceObserved, apply: Iterable[Manifest]) -> tuple[Reference, ...]:
    """What this service controls and no longer wants. A ConfigMap stays while anything that is
    still there mounts it."""
    uid = observed.service["metadata"].get("uid")
    wanted = {identity(manifest) for manifest in apply}
    mounted = {("ConfigMap", name) for name in _mounted_config_maps(observed.children)}
    return tuple(
        reference_to(child, SERVICE_CHILDREN)
        for child in observed.children
        if uid is not None
        and controller_uid(child) == uid
        and identity(child) not in wanted | mounted
        and not child["metadata"].get("deletionTimestamp")
    )


def _mounted_config_maps(children: tuple[Manifest, ...]) -> set[str]:
    found = {pool["spec"]["configRef"]["name"] for pool in of_kind(children, ENGINE_POOL)}
    for deployment in of_kind(children, DEPLOYMENT):
        for volume in deployment["spec"]["template"]["spec"].get("volumes") or ():
            if "configMap" in volume:
                found.add(volume["configMap"]["name"])
    return found


def _taken(foreign: tuple[Manifest, ...]) -> Refusal:
    names = ", ".join(f"{kind} {name}" for kind, name in map(identity, foreign))
    return Refusal(
        "NameTaken",
        "metadata.name",
        f"metadata.name: {names} exists and is not this service's; choose another name for the "
        "service, or delete it",
    )
