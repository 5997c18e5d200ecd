"""The HTTPRoute by which a shared Gateway leads to a service's routers.

Every field that the API server would fill in is set, so that nothing it stores differs from this.
"""

from __future__ import annotations

from typing import Final

from sluice_contract.cluster import ports

from sluice_operator.api.route import GatewayRef, RouteHeader, RouteSpec
from sluice_operator.kube.kinds import HTTP_ROUTE, Manifest
from sluice_operator.manifests.metadata import ROUTER, Owner

GATEWAY_GROUP: Final = "gateway.networking.k8s.io"
NO_TIMEOUT: Final = "0s"
"""Answers are streams: a Gateway's own limit would cut them."""


def http_route(owner: Owner, route: RouteSpec) -> Manifest:
    """The HTTPRoute NAME."""
    backend = {
        "group": "",
        "kind": "Service",
        "name": owner.service,
        "port": ports.SERVICE_HTTP,
        "weight": 1,
    }
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
    return owner.child(HTTP_ROUTE, owner.service, ROUTER) | {"spec": spec}


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
