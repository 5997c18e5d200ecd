"""RouteAccepted: what the Gateways say of a service's route."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.kube.kinds import HTTP_ROUTE, INFERENCE_POOL, Kind, Manifest, of_kind
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import NOW, service, service_observed

RESOLVED = "ResolvedRefs"
POOL: Manifest = {"endpointPickerRef": {"name": "picker", "port": 9002}}
ROUTE: Manifest = {
    "parentRefs": [{"name": "public", "namespace": "infra"}],
    "hostnames": ["m.example.com"],
}


def answer(kind: str, status: str, reason: str, generation: int = 1) -> Manifest:
    return {
        "type": kind, "status": status, "reason": reason, "message": f"it is {reason}.",
        "observedGeneration": generation,
    }  # fmt: skip


def found(
    *conditions: Manifest,
    kinds: tuple[Any, ...] = (HTTP_ROUTE,),
    of: Kind = HTTP_ROUTE,
    name: str = "RouteAccepted",
) -> Manifest | None:
    """The condition `name`, once the Gateway has answered with these in the object `of`."""
    pool = {"inferencePool": POOL} if of == INFERENCE_POOL else {}
    asked = service({"router": {"route": ROUTE} | pool})
    observed = service_observed(asked, optional_kinds=kinds)
    children = []
    for planned in of_kind(plan_service(observed).apply, of):
        parent = {"parentRef": ROUTE["parentRefs"][0], "conditions": list(conditions)}
        metadata = planned["metadata"] | {"generation": 1, "uid": "r"}
        children.append(planned | {"metadata": metadata, "status": {"parents": [parent]}})
    observed = service_observed(asked, children=tuple(children), optional_kinds=kinds)
    status = service_status(observed, plan_service(observed), NOW)
    listed = (each for each in status["conditions"] if each["type"] == name)
    return next(listed, None)


@pytest.mark.parametrize(
    ("conditions", "status", "reason", "says"),
    [
        (
            [
                answer("Accepted", "True", "Accepted"),
                answer(RESOLVED, "True", RESOLVED),
            ],
            "True",
            "Accepted",
            "Gateway infra/public sends requests below /chat of m.example.com here.",
        ),
        (
            [answer("Accepted", "False", "NotAllowedByListeners")],
            "False",
            "NotAllowedByListeners",
            "Gateway infra/public: it is NotAllowedByListeners.",
        ),
        (
            [answer("Accepted", "True", "Accepted"), answer(RESOLVED, "False", "NoBackend")],
            "False",
            "NoBackend",
            "Gateway infra/public: it is NoBackend.",
        ),
        ([], "Unknown", "NoAnswer", "spec.router.route.parentRefs"),
        ([answer("Accepted", "True", "Accepted", 0)], "Unknown", "NoAnswer", "answered"),
    ],
)
def test_it_is_what_the_gateways_say(
    conditions: list[Manifest], status: str, reason: str, says: str
) -> None:
    condition = found(*conditions)
    assert condition is not None
    assert (condition["status"], condition["reason"]) == (status, reason)
    assert says in condition["message"]


def test_without_the_gateway_api_it_says_so() -> None:
    condition = found(kinds=())
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "NotInstalled")


def of_pool(*conditions: Manifest, kinds: tuple[Any, ...] = (INFERENCE_POOL,)) -> Manifest:
    condition = found(*conditions, kinds=kinds, of=INFERENCE_POOL, name="InferencePoolAccepted")
    assert condition is not None
    return condition


@pytest.mark.parametrize(
    ("conditions", "status", "reason", "says"),
    [
        ([answer("Accepted", "True", "Accepted")], "True", "Accepted", "Gateway infra/public"),
        (
            [answer("Accepted", "True", "Accepted"), answer(RESOLVED, "False", "InvalidExtension")],
            "False",
            "InvalidExtension",
            "Gateway infra/public: it is InvalidExtension.",
        ),
        (
            [answer("Accepted", "False", "HTTPRouteNotAccepted")],
            "False",
            "HTTPRouteNotAccepted",
            "",
        ),
        ([], "Unknown", "NoAnswer", "No Gateway has answered"),
        ([answer("Accepted", "True", "Accepted", 0)], "Unknown", "NoAnswer", "No Gateway"),
    ],
)
def test_of_an_inference_pool_it_is_what_the_gateways_say(
    conditions: list[Manifest], status: str, reason: str, says: str
) -> None:
    condition = of_pool(*conditions)
    assert (condition["status"], condition["reason"]) == (status, reason)
    assert says in condition["message"]


def test_a_route_that_leads_past_the_pool_to_the_service_is_told_of() -> None:
    kinds = (INFERENCE_POOL, HTTP_ROUTE)
    asked = service({"router": {"route": ROUTE, "inferencePool": POOL}})
    observed = service_observed(asked, optional_kinds=kinds)
    for gateways in ([], [answer(RESOLVED, "False", "InvalidKind")]):
        optional = [m for kind in kinds for m in of_kind(plan_service(observed).apply, kind)]
        parent = {"parentRef": ROUTE["parentRefs"][0], "conditions": gateways}
        children = tuple(
            child
            | {"metadata": child["metadata"] | {"generation": 1}, "status": {"parents": [parent]}}
            for child in optional
        )
        observed = service_observed(asked, children=children, optional_kinds=kinds)
    status = service_status(observed, plan_service(observed), NOW)
    (pool,) = (each for each in status["conditions"] if each["type"] == "InferencePoolAccepted")
    assert (pool["status"], pool["reason"]) == ("False", "InvalidKind")
    assert "the route leads to the Service" in pool["message"]


def test_without_the_inference_extension_it_says_what_to_install() -> None:
    condition = of_pool(kinds=(HTTP_ROUTE,))
    assert (condition["status"], condition["reason"]) == ("False", "NotInstalled")
    assert "install the Gateway API Inference Extension" in condition["message"]
    assert "inferencepools of inference.networking.k8s.io/v1" in condition["message"]


def test_a_service_without_a_route_has_no_such_condition() -> None:
    observed = service_observed(service())
    status = service_status(observed, plan_service(observed), NOW)
    names = {each["type"] for each in status["conditions"]}
    assert names.isdisjoint({"RouteAccepted", "InferencePoolAccepted"})
