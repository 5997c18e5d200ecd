"""Turns EndpointSlices into the engines they name: a pure function.

Knows what the conditions ready, serving and terminating mean, and that a pod may be in several
slices (address families, slices being rewritten). Knows no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sluice_contract.cluster.labels import Role

from sluice_router.engines import Endpoint, Phase

SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
_PREFERENCE: Final = {Phase.READY: 0, Phase.TERMINATING: 1, Phase.UNREADY: 2}

Manifest = Mapping[str, Any]


def endpoints_of(slices: Iterable[Manifest], service: str, port_name: str) -> tuple[Endpoint, ...]:
    """The engines named by `slices` of the Services `SERVICE-ROLE`, one entry a pod, by name."""
    found = [entry for slice_ in slices for entry in _endpoints_in(slice_, service, port_name)]
    by_name: dict[str, Endpoint] = {}
    for endpoint in sorted(found, key=lambda e: (_PREFERENCE[e.phase], "[" in e.url, e.url)):
        by_name.setdefault(endpoint.name, endpoint)
    return tuple(sorted(by_name.values(), key=lambda e: e.name))


def _endpoints_in(slice_: Manifest, service: str, port_name: str) -> Iterator[Endpoint]:
    role = _role_of(slice_, service)
    port = _port_of(slice_, port_name)
    family = slice_.get("addressType")
    if role is None or port is None or family not in ("IPv4", "IPv6"):
        return
    for entry in slice_.get("endpoints") or ():
        address = entry["addresses"][0]  # the API allows no other, and no empty list
        host = f"[{address}]" if family == "IPv6" else address
        name = (entry.get("targetRef") or {}).get("name") or address
        yield Endpoint(name, f"http://{host}:{port}", role, _phase_of(entry))


def _role_of(slice_: Manifest, service: str) -> Role | None:
    labels = slice_.get("metadata", {}).get("labels") or {}
    name = labels.get(SERVICE_NAME_LABEL, "")
    suffix = name.removeprefix(f"{service}-")
    return Role(suffix) if suffix != name and suffix in set(Role) else None


def _port_of(slice_: Manifest, port_name: str) -> int | None:
    for port in slice_.get("ports") or ():
        if port.get("name") == port_name and port.get("port"):
            return int(port["port"])
    return None


def _phase_of(entry: Manifest) -> Phase:
    conditions = entry.get("conditions") or {}
    if conditions.get("terminating"):
        return Phase.TERMINATING
    ready = conditions.get("ready")
    return Phase.UNREADY if ready is False else Phase.READY  # absent means ready
