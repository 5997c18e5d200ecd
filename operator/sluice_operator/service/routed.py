"""Whether the Gateways that a service names lead to it. Pure; they say so in the HTTPRoute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_operator.api.conditions import Check
from sluice_operator.api.route import RouteSpec
from sluice_operator.kube.kinds import HTTP_ROUTE, Manifest, of_kind
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan import ServicePlan

_DECISIVE: Final = ("Accepted", "ResolvedRefs")


def route_check(observed: ServiceObserved, plan: ServicePlan) -> Check | None:
    """The condition RouteAccepted; None where no route is asked for."""
    route = plan.spec.router.route if plan.spec and plan.spec.router else None
    if route is None:
        return None
    if HTTP_ROUTE not in observed.optional_kinds:
        text = (
            f"spec.router.route: the cluster has no {HTTP_ROUTE.plural} of {HTTP_ROUTE.api_version}"
            ", or the operator may not list them; the service is reached at status.url."
        )
        return Check("False", "NotInstalled", text)
    name = observed.service["metadata"]["name"]
    found = (each for each in of_kind(observed.children, HTTP_ROUTE) if _name(each) == name)
    live = next(found, None)
    answers = list(_answers(live)) if live else []
    for gateway, condition in answers:
        if condition["type"] in _DECISIVE and condition["status"] == "False":
            message = condition.get("message", "")
            return Check("False", condition["reason"], f"Gateway {gateway}: {message}")
    accepting = [gateway for gateway, each in answers if _accepts(each)]
    if len(accepting) < len(route.parent_refs):
        text = "Not every Gateway of spec.router.route.parentRefs has answered: is each there?"
        return Check("Unknown", "NoAnswer", text)
    hosts = ", ".join(route.hostnames or ("every host of its listeners",))
    text = f"Gateway {', '.join(accepting)} sends {_meant(route, name)} of {hosts} here."
    return Check("True", "Accepted", text)


def _meant(route: RouteSpec, name: str) -> str:
    header = route.header
    with_header = f" with {header.name}: {header.value or name}" if header else ""
    return f"requests below {route.prefix(name)}{with_header}"


def _answers(live: Manifest) -> Iterator[tuple[str, Manifest]]:
    """The conditions of each Gateway that are about the route as it is now."""
    metadata = live["metadata"]
    for parent in (live.get("status") or {}).get("parents") or ():
        ref = parent["parentRef"]
        gateway = f"{ref.get('namespace', metadata['namespace'])}/{ref['name']}"
        for condition in parent.get("conditions") or ():
            generation = metadata.get("generation", 0)
            if condition.get("observedGeneration", generation) == generation:
                yield gateway, condition


def _accepts(condition: Manifest) -> bool:
    return (condition["type"], condition["status"]) == ("Accepted", "True")


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])
