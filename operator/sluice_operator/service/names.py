"""The names of a service's children, known before anything is planned.

Pure. Most ConfigMaps are named by hashes of their content, so nobody else's object can have these
names.
"""

from __future__ import annotations

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.api.model_uri import FETCHED, IMAGE, scheme_of
from sluice_operator.api.service import mode_of, roles_of
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    HTTP_ROUTE,
    INFERENCE_POOL,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    PROMETHEUS_RULE,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
    of_kind,
)
from sluice_operator.manifests.adapters import adapters_name
from sluice_operator.manifests.fetching import claim_name, fetch_name
from sluice_operator.manifests.hub import ca_name
from sluice_operator.manifests.metadata import ENGINE, ROUTER
from sluice_operator.manifests.monitoring import rule_name
from sluice_operator.manifests.pods import mounted_config_maps

Name = tuple[Kind, str]

_OF_FETCHERS = (SERVICE_ACCOUNT, NETWORK_POLICY)
_OF_ENGINES = (SERVICE_ACCOUNT, NETWORK_POLICY)
_OF_ROUTERS = (
    SERVICE_ACCOUNT, ROLE, ROLE_BINDING, NETWORK_POLICY, DEPLOYMENT, POD_DISRUPTION_BUDGET,
)  # fmt: skip
_OF_EACH_POOL = (SERVICE, ENGINE_POOL)
_OF_EACH_OF_TWO_POOLS = (*_OF_EACH_POOL, NETWORK_POLICY)


def child_names(
    service: Manifest, optional_kinds: tuple[Kind, ...], *, with_ca: bool = False
) -> frozenset[Name]:
    """Kind and name of every child of an InferenceService, except ConfigMaps named by their
    content. `with_ca`: whether downloads trust certificates from the operator's settings."""
    name, roles = service["metadata"]["name"], _roles(service)
    pool_kinds = _OF_EACH_POOL if len(roles) == 1 else _OF_EACH_OF_TWO_POOLS
    monitors = (POD_MONITOR,) if POD_MONITOR in optional_kinds else ()
    return frozenset(
        (
            (SERVICE, name),
            *((kind, f"{name}-{ENGINE}") for kind in (*_OF_ENGINES, *monitors)),
            *((kind, f"{name}-{ROUTER}") for kind in (*_OF_ROUTERS, *monitors)),
            *((kind, f"{name}-{role}") for role in roles for kind in pool_kinds),
            *((kind, rule_name(name)) for kind in _of_promises(service) & set(optional_kinds)),
            *_of_hubs(service, with_ca=with_ca),
            *_of_adapters(service),
            *((kind, name) for kind in _of_routes(service) & set(optional_kinds)),
        )
    )


def config_maps_in_use(children: tuple[Manifest, ...]) -> frozenset[Name]:
    """The ConfigMaps that live children refer to."""
    names = {pool["spec"]["configRef"]["name"] for pool in of_kind(children, ENGINE_POOL)}
    for deployment in of_kind(children, DEPLOYMENT):
        names |= mounted_config_maps(deployment)
    return frozenset((CONFIG_MAP, name) for name in names)


def downloads_in_use(children: tuple[Manifest, ...]) -> frozenset[Name]:
    """The claims that pods of live Deployments mount, and the policies that let pods download."""
    names: set[Name] = set()
    for deployment in of_kind(children, DEPLOYMENT):
        template = deployment["spec"]["template"]
        marks = template["metadata"].get("labels") or {}
        if labels.FETCHES in marks:
            names.add((NETWORK_POLICY, fetch_name(marks.get(labels.SERVICE, ""))))
        for volume in template["spec"].get("volumes") or ():
            if claim := volume.get("persistentVolumeClaim"):
                names.add((PERSISTENT_VOLUME_CLAIM, claim["claimName"]))
    return frozenset(names)


def fetches(service: Manifest) -> bool:
    """Whether a service's model is downloaded, or adapters may be."""
    model = (service.get("spec") or {}).get("model") or {}
    return scheme_of(str(model.get("uri", ""))) in FETCHED or "cache" in model


def has_model_image(service: Manifest) -> bool:
    """Whether a service's model is an image."""
    uri = ((service.get("spec") or {}).get("model") or {}).get("uri", "")
    return scheme_of(str(uri)) == IMAGE


def _of_hubs(service: Manifest, *, with_ca: bool) -> frozenset[Name]:
    if not fetches(service):
        return frozenset()
    name = service["metadata"]["name"]
    cache = service["spec"]["model"].get("cache") or {}
    claim = {(PERSISTENT_VOLUME_CLAIM, claim_name(name))} if "size" in cache else set()
    trusted = {(CONFIG_MAP, ca_name(name))} if with_ca else set()
    return frozenset({(kind, fetch_name(name)) for kind in _OF_FETCHERS} | claim | trusted)


def _of_adapters(service: Manifest) -> frozenset[Name]:
    adapters = ((service.get("spec") or {}).get("model") or {}).get("adapters")
    name = adapters_name(service["metadata"]["name"])
    return frozenset() if adapters is None else frozenset({(CONFIG_MAP, name)})


def _of_promises(service: Manifest) -> frozenset[Kind]:
    """Kinds that only a service with an `slo` has children of."""
    promises = (service.get("spec") or {}).get("slo")
    return frozenset() if promises is None else frozenset({PROMETHEUS_RULE})


def _of_routes(service: Manifest) -> frozenset[Kind]:
    """Kinds that only a service with a route, or with an InferencePool, has children of."""
    router = (service.get("spec") or {}).get("router") or {}
    fields = {"route": HTTP_ROUTE, "inferencePool": INFERENCE_POOL}
    return frozenset(kind for field, kind in fields.items() if router.get(field) is not None)


def _roles(service: Manifest) -> tuple[Role, ...]:
    return roles_of(mode_of(service.get("spec") or {}))
