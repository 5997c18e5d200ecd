"""The state of objects of optional kinds: whether they are applied, and whether the service's
Gateways route to it. Pure; Gateways report in the HTTPRoute and in the InferencePool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_operator.api.conditions import (
    INFERENCE_POOL_ACCEPTED,
    OPTIONAL_KINDS_APPLIED,
    ROUTE_ACCEPTED,
    Check,
)
from sluice_operator.api.route import RouteSpec
from sluice_operator.apply.applier import Refused
from sluice_operator.apply.plan import identity
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find, reason_of
from sluice_operator.kube.kinds import (
    HTTP_ROUTE,
    INFERENCE_POOL,
    OPTIONAL_CHILDREN,
    Kind,
    Manifest,
    of_kind,
)
from sluice_operator.manifests.metadata import note_of
from sluice_operator.manifests.route import INVALID_KIND, POOL_REFUSED
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.plan import ServicePlan

_DECISIVE: Final = ("Accepted", "ResolvedRefs")


def optional_checks(
    observed: ServiceObserved, plan: ServicePlan, refused: tuple[Refused, ...]
) -> dict[str, Check]:
    """The conditions OptionalKindsApplied, RouteAccepted and InferencePoolAccepted, each where
    there is a reason for it. `refused`: what of the plan could not be carried out."""
    failed = [refusal for refusal in refused if refusal.is_optional]
    applied = _applied_check(observed.service, observed.children, plan, failed)
    routed, pooled = _route_check(observed, plan), _pool_check(observed, plan)
    checks = {
        OPTIONAL_KINDS_APPLIED: applied,
        ROUTE_ACCEPTED: routed and (_apply_failure(HTTP_ROUTE, failed) or routed),
        INFERENCE_POOL_ACCEPTED: pooled and (_apply_failure(INFERENCE_POOL, failed) or pooled),
    }
    return {name: check for name, check in checks.items() if check is not None}


def _apply_failure(kind: Kind, failed: list[Refused]) -> Check | None:
    for refusal in failed:
        if refusal.of.kind == kind.kind:
            text = f"The {kind.kind} is not as planned: see {OPTIONAL_KINDS_APPLIED}."
            return Check("False", reason_of(refusal), text)
    return None


def _applied_check(
    service: Manifest, children: Children, plan: ServicePlan, failed: list[Refused]
) -> Check | None:
    if plan.paused:
        before = find(service.get("status"), OPTIONAL_KINDS_APPLIED)
        return Check(before["status"], before["reason"], before["message"]) if before else None
    if failed:
        text = f"{'; '.join(str(refusal.error) for refusal in failed)}. The service does without."
        return Check("False", reason_of(failed[0]), text)
    kinds = {kind.kind for kind in OPTIONAL_CHILDREN}
    planned = [child for child in map(identity, plan.apply) if child.kind in kinds]
    if not planned:
        return None
    names = ", ".join(map(" ".join, planned))
    if not set(map(identity, children)).issuperset(planned):
        return Check("Unknown", reasons.APPLYING, f"To be applied: {names}.")
    return Check("True", "Applied", f"As the spec asks: {names}.")


def _route_check(observed: ServiceObserved, plan: ServicePlan) -> Check | None:
    """The condition RouteAccepted; None where no route is asked for."""
    route = plan.spec.router.route if plan.spec and plan.spec.router else None
    if route is None:
        return None
    if HTTP_ROUTE not in observed.optional_kinds:
        return _not_installed("route", HTTP_ROUTE, "the service is reached at status.url")
    name = observed.service["metadata"]["name"]
    gateways = _gateway_conditions(observed, HTTP_ROUTE)
    if refusal := _refusal(gateways):
        return refusal
    accepting = [gateway for gateway, condition in gateways if _accepts(condition)]
    if len(accepting) < len(route.parent_refs):
        text = "Not every Gateway of spec.router.route.parentRefs has answered: is each there?"
        return Check("Unknown", "NoAnswer", text)
    hosts = ", ".join(route.hostnames or ("every host of its listeners",))
    text = f"Gateway {', '.join(accepting)} sends {_matched_requests(route, name)} of {hosts} here."
    return Check("True", "Accepted", text)


def _matched_requests(route: RouteSpec, name: str) -> str:
    header = route.header
    with_header = f" with {header.name}: {header.value or name}" if header else ""
    return f"requests below {route.prefix(name)}{with_header}"


def _pool_check(observed: ServiceObserved, plan: ServicePlan) -> Check | None:
    """The condition InferencePoolAccepted; None where no InferencePool is asked for."""
    if plan.spec is None or plan.spec.router is None or plan.spec.router.inference_pool is None:
        return None
    if INFERENCE_POOL not in observed.optional_kinds:
        does = "install the Gateway API Inference Extension, 1.0 or newer. A route leads to the "
        return _not_installed("inferencePool", INFERENCE_POOL, f"{does}Service until then")
    if any(note_of(route, POOL_REFUSED) for route in of_kind(plan.apply, HTTP_ROUTE)):
        text = "A Gateway of spec.router.route does not know InferencePools, so the route leads to "
        text += "the Service. Another is tried when route or inferencePool of spec.router changes."
        return Check("False", INVALID_KIND, text)
    gateways = _gateway_conditions(observed, INFERENCE_POOL)
    if refusal := _refusal(gateways):
        return refusal
    accepting = [gateway for gateway, condition in gateways if _accepts(condition)]
    if not accepting:
        text = "No Gateway has answered: one does that knows the kind, and has a route to the pool."
        return Check("Unknown", "NoAnswer", text)
    text = f"Gateway {', '.join(accepting)} sends requests to the routers by the InferencePool."
    return Check("True", "Accepted", text)


def _not_installed(field: str, kind: Kind, does: str) -> Check:
    lacks = f"the cluster has no {kind.plural} of {kind.api_version}, or the operator may not list"
    return Check("False", "NotInstalled", f"spec.router.{field}: {lacks} them; {does}.")


def _refusal(gateways: list[tuple[str, Manifest]]) -> Check | None:
    for gateway, condition in gateways:
        if condition["type"] in _DECISIVE and condition["status"] == "False":
            message = condition.get("message", "")
            return Check("False", condition["reason"], f"Gateway {gateway}: {message}")
    return None


def _gateway_conditions(observed: ServiceObserved, kind: Kind) -> list[tuple[str, Manifest]]:
    """Conditions that Gateways report of the service's object of the kind: Gateway and
    condition."""
    name = observed.service["metadata"]["name"]
    named = (item for item in of_kind(observed.children, kind) if _name(item) == name)
    live = next(named, None)
    return list(_conditions(live)) if live else []


def _conditions(live: Manifest) -> Iterator[tuple[str, Manifest]]:
    """The conditions of each Gateway that are about the object as it is now."""
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
