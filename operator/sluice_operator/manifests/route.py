"""The HTTPRoute by which a shared Gateway leads to a service's routers, and their InferencePool.

Sets every field that the API server would fill in, so that the stored object does not differ.
"""

from __future__ import annotations

from typing import Final

from sluice_contract.cluster import labels, ports
from sluice_contract.cluster.labels import ROUTER_ROLE

from sluice_operator.api.route import EndpointPickerRef, GatewayRef, RouteHeader, RouteSpec
from sluice_operator.kube.kinds import HTTP_ROUTE, INFERENCE_POOL, SERVICE, Manifest
from sluice_operator.manifests.metadata import ROUTER, Owner, digest, note_of, selector_labels

GATEWAY_GROUP: Final = "gateway.networking.k8s.io"
INVALID_KIND: Final = "InvalidKind"
"""A Gateway's reason: it does not know the kind of a backend."""
NO_TIMEOUT: Final = "0s"
"""Answers are streams: a Gateway's own limit would cut them."""


POOL_REFUSED: Final = f"{labels.GROUP}/inference-pool-refused"
"""Annotation of an HTTPRoute: hash of the route and the InferencePool that were asked for when one
of its Gateways said that it does not know the kind."""
FAIL_OPEN: Final = "FailOpen"
"""Failure mode of a picker: without the picker, a request may go to any router."""


def http_route(
    owner: Owner, route: RouteSpec, *, by_pool: bool = False, refused: str = ""
) -> Manifest:
    """The HTTPRoute NAME. `by_pool`: whether it leads to the InferencePool NAME instead of the
    Service. `refused`: result of `pool_refusal`."""
    backend: Manifest = {"group": "", "kind": SERVICE.kind, "port": ports.SERVICE_HTTP}
    if by_pool:
        # A backend of this kind gets its port from the InferencePool.
        backend = {"group": INFERENCE_POOL.group, "kind": INFERENCE_POOL.kind}
    backend |= {"name": owner.service, "weight": 1}
    prefix = route.prefix(owner.service)
    rule = {
        "matches": [_match(owner, prefix, route.header)],
        **({} if prefix == "/" else {"filters": [_WITHOUT_PREFIX]}),
        "backendRefs": [backend],
        "timeouts": {"request": NO_TIMEOUT, "backendRequest": NO_TIMEOUT},
    }
    hosts = {"hostnames": list(route.hostnames)} if route.hostnames else {}
    parents = [_parent(parent) for parent in route.parent_refs]
    spec = {"parentRefs": parents, **hosts, "rules": [rule]}
    made = owner.child(HTTP_ROUTE, owner.service, ROUTER) | {"spec": spec}
    if refused:
        made["metadata"]["annotations"] = {POOL_REFUSED: refused}
    return made


def pool_refusal(live: Manifest, route: RouteSpec, picker: EndpointPickerRef) -> str:
    """Hash of `route` and `picker` if a Gateway of the `live` HTTPRoute reports that it does not
    know InferencePools; else empty. Such a Gateway would answer every request with 500."""
    asked = digest([route.to_json_dict(), picker.to_json_dict()])
    backends = [
        ref for rule in live["spec"].get("rules") or () for ref in rule.get("backendRefs") or ()
    ]
    by_pool = any(ref.get("kind") == INFERENCE_POOL.kind for ref in backends)
    parents = (live.get("status") or {}).get("parents") or ()
    unknown = any(
        condition["reason"] == INVALID_KIND
        and condition.get("observedGeneration") == live["metadata"].get("generation")
        for parent in parents
        for condition in parent.get("conditions") or ()
    )
    return asked if note_of(live, POOL_REFUSED) == asked or (by_pool and unknown) else ""


def inference_pool(owner: Owner, picker: EndpointPickerRef) -> Manifest:
    """The InferencePool NAME: the routers, of every revision. It sets no `appProtocol`, which
    releases before 1.4 refuse and whose default is http."""
    extension = {
        "group": "",
        "kind": SERVICE.kind,
        "name": picker.name,
        "port": {"number": picker.port},
        "failureMode": picker.failure_mode or FAIL_OPEN,
    }
    spec = {
        "selector": {"matchLabels": selector_labels(owner.service, ROUTER_ROLE)},
        "targetPorts": [{"number": ports.ROUTER_HTTP}],
        "endpointPickerRef": extension,
    }
    return owner.child(INFERENCE_POOL, owner.service, ROUTER, ROUTER_ROLE) | {"spec": spec}


_WITHOUT_PREFIX: Final[Manifest] = {
    "type": "URLRewrite",
    "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
}


def _parent(gateway: GatewayRef) -> Manifest:
    return {"group": GATEWAY_GROUP, "kind": "Gateway", **gateway.to_json_dict()}


def _match(owner: Owner, prefix: str, header: RouteHeader | None) -> Manifest:
    path = {"path": {"type": "PathPrefix", "value": prefix}}
    if header is None:
        return path
    value = header.value or owner.service
    return path | {"headers": [{"type": "Exact", "name": header.name, "value": value}]}
