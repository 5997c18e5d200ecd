"""The routers of a service: as this release of the operator makes them, or as another one decided
for the same part of the spec. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sluice_contract.cluster.labels import ROUTER_ROLE
from sluice_contract.config.cors import Cors
from sluice_contract.config.router import (
    Auth,
    Discovery,
    RouterConfig,
    RouterServer,
    Tenant,
    Upstream,
    max_buffered_bytes,
    render_router_config,
)
from sluice_contract.config.tracing import RouterTracing

from sluice_operator.api.pools import PrefillSpec
from sluice_operator.api.quantities import amount
from sluice_operator.api.router import RouterSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import applied_manifest
from sluice_operator.kube.kinds import CONFIG_MAP, DEPLOYMENT, Manifest, of_kind
from sluice_operator.manifests.config_map import ROUTER_FILE, config_map
from sluice_operator.manifests.deployments import to_apply, with_replicas
from sluice_operator.manifests.handover import (
    HANDOVER_KEY_FILE,
    handover_secret_name,
)
from sluice_operator.manifests.metadata import ROUTER, Owner, digest
from sluice_operator.manifests.ownership import owned_by, restored
from sluice_operator.manifests.placement import router_template
from sluice_operator.manifests.pods import mounted_config_maps
from sluice_operator.manifests.router import (
    KEYS_FOLDER,
    ROUTER_RESOURCES,
    RouterDeployment,
    router_deployment,
)
from sluice_operator.service.observe import Children, Images, ServiceObserved
from sluice_operator.service.revisions.parts import router_part
from sluice_operator.service.revisions.revision import DecidedRouter


@dataclass(frozen=True)
class PlannedRouter:
    """The routers' Deployment, and the configuration that it needs."""

    deployment: Manifest
    config_maps: tuple[Manifest, ...]
    """Configurations to apply; empty where the routers are of a former mode."""
    upgrade: tuple[str, ...]
    """Changes that this release would make, in words."""
    is_former: bool = False
    """Whether the routers are of another mode and stay; only their number may change."""


def decided_by_this_release(
    images: Images, top: Owner, spec: InferenceServiceSpec
) -> DecidedRouter:
    """The routers of a spec as this release makes them."""
    own = spec.router.image if spec.router else None
    return DecidedRouter(own or images.router, _file(top, spec))


def plan_router(
    observed: ServiceObserved,
    top: Owner,
    spec: InferenceServiceSpec,
    decided: DecidedRouter,
    *,
    waits: bool = False,
    before: DecidedRouter | None = None,
) -> PlannedRouter:
    """The routers of a service. `waits`: routers of a former mode should serve on for now, unless
    they already use the pools of the spec's mode; `before`: what was decided of these."""
    live = _live(observed.children, top)
    followed = _followed(observed.children, live) if live else None
    if waits and live is not None and followed not in (None, set(spec.roles)):
        return PlannedRouter(_serving_on(live, top, spec), (), (), is_former=True)
    if waits and followed is None and not _has_switched(observed.service, spec):
        other = _in_other_mode(spec)
        revision = before or decided_by_this_release(observed.images, top, other)
        file, deployment = _built(top, other, revision)
        return PlannedRouter(deployment, (file,), (), is_former=True)
    file, built = _built(top, spec, decided)
    deployment = to_apply(built, applied_manifest(live) if live else None)
    fresh = decided_by_this_release(observed.images, top, spec)
    return PlannedRouter(deployment, (file,), tuple(_changes(decided, fresh, deployment, built)))


def _changes(
    decided: DecidedRouter, fresh: DecidedRouter, deployment: Manifest, built: Manifest
) -> Iterator[str]:
    """Changes that this release would make to the routers, in words."""
    if decided.image != fresh.image:
        yield f"routers: image {decided.image} to {fresh.image}"
    elif decided.file != fresh.file or deployment is not built:
        yield "routers: their pods"


def _serving_on(live: Manifest, top: Owner, spec: InferenceServiceSpec) -> Manifest:
    """The live Deployment as it was applied, with the number of routers of `spec`."""
    applied = owned_by(applied_manifest(live) or restored(live), top)
    return with_replicas(applied, (spec.router or RouterSpec()).replicas)


def _in_other_mode(spec: InferenceServiceSpec) -> InferenceServiceSpec:
    other = None if spec.is_disaggregated else PrefillSpec()
    return spec.model_copy(update={"prefill": other})


def _followed(children: Children, live: Manifest) -> set[str] | None:
    """The roles of the pools that the routers of `live` know; None: their file is gone."""
    names = mounted_config_maps(live)
    for item in of_kind(children, CONFIG_MAP):
        text = (item.get("data") or {}).get(ROUTER_FILE)
        if item["metadata"]["name"] in names and text is not None:
            return _roles(text)
    return None


def _has_switched(service: Manifest, spec: InferenceServiceSpec) -> bool:
    """Whether the service was served in the mode of `spec` last, as its status says."""
    return bool((service.get("status") or {}).get("mode") == spec.mode)


def _roles(text: str) -> set[str]:
    """The roles in a router's file, of whatever release."""
    try:
        return set(json.loads(text)["discovery"]["roles"])
    except (KeyError, TypeError, ValueError):
        return set()


def _file(top: Owner, spec: InferenceServiceSpec) -> str:
    """Content of router.json."""
    wait = spec.wait_for_engine_seconds
    config = RouterConfig(
        discovery=Discovery(service=top.service, roles=spec.roles),
        server=RouterServer(
            drain_seconds=spec.longest_drain_seconds,
            max_buffered_bytes=max_buffered_bytes(_memory_limit_bytes(spec)),
        ),
        upstream=Upstream() if wait is None else Upstream(wait_for_engine_seconds=wait),
        handover_key_file=HANDOVER_KEY_FILE,
        auth=_auth(spec),
        cors=_cors(spec),
        page=not (spec.router and spec.router.page is False),
        tracing=_tracing(spec),
    )
    return render_router_config(config)


def _auth(spec: InferenceServiceSpec) -> Auth | None:
    auth = spec.router.auth if spec.router else None
    if auth is None:
        return None
    listed = None
    if auth.tenants is not None:
        listed = tuple(Tenant.model_validate(tenant.to_json_dict()) for tenant in auth.tenants)
    return Auth(keys_directory=KEYS_FOLDER, tenants=listed)


def _cors(spec: InferenceServiceSpec) -> Cors | None:
    cors = spec.router.cors if spec.router else None
    return None if cors is None else Cors(allowed_origins=cors.allowed_origins)


def _tracing(spec: InferenceServiceSpec) -> RouterTracing | None:
    tracing = spec.tracing
    if tracing is None:
        return None
    ratio = float(tracing.sample_percent) / 100
    return RouterTracing(endpoint=tracing.endpoint, sample_ratio=ratio)


def _memory_limit_bytes(spec: InferenceServiceSpec) -> int:
    """Memory limit of one router in bytes; without a limit, that of the default resources."""
    resources = spec.router.resources if spec.router else None
    limits = (resources.limits if resources else None) or ROUTER_RESOURCES["limits"]
    return int(amount(limits.get("memory")) or amount(ROUTER_RESOURCES["limits"]["memory"]) or 0)


def _built(
    top: Owner, spec: InferenceServiceSpec, decided: DecidedRouter
) -> tuple[Manifest, Manifest]:
    """The routers' configuration and their Deployment, whose pods are as this release makes
    them."""
    file = config_map(top, ROUTER_FILE, decided.file, ROUTER, ROUTER_ROLE)
    router, name = spec.router or RouterSpec(), file["metadata"]["name"]
    lame_duck = int(RouterServer().lame_duck_seconds)
    deployment = RouterDeployment(
        replicas=router.replicas,
        image=decided.image,
        config_map=name,
        resources=router.resources,
        template=router_template(router.template, map(spec.pool, spec.roles)),
        shutdown_seconds=lame_duck + spec.longest_drain_seconds,
        inputs=digest([router_part(spec), decided.image, name]),
        handover_secret=handover_secret_name(top.service),
        keys_secret=_keys_secret(spec),
        restarted_at=spec.restarted_at,
    )
    return file, router_deployment(top, deployment)


def _keys_secret(spec: InferenceServiceSpec) -> str | None:
    """The Secret with the API keys of clients."""
    auth = spec.router.auth if spec.router else None
    return auth.secret_ref.name if auth else None


def _live(children: Children, top: Owner) -> Manifest | None:
    name = f"{top.service}-{ROUTER}"
    deployments = of_kind(children, DEPLOYMENT)
    return next((item for item in deployments if item["metadata"]["name"] == name), None)
