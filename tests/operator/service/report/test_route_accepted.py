"""RouteAccepted: what the Gateways say of a service's route."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.kube.kinds import HTTP_ROUTE, Manifest, of_kind
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import NOW, service, service_observed

RESOLVED = "ResolvedRefs"
ROUTE: Manifest = {
    "parentRefs": [{"name": "public", "namespace": "infra"}],
    "hostnames": ["m.example.com"],
}


def answer(kind: str, status: str, reason: str, generation: int = 1) -> Manifest:
    return {
        "type": kind, "status": status, "reason": reason, "message": f"it is {reason}.",
        "observedGeneration": generation,
    }  # fmt: skip


def found(*conditions: Manifest, kinds: tuple[Any, ...] = (HTTP_ROUTE,)) -> Manifest | None:
    """The condition, once the Gateway has answered with these."""
    asked = service({"router": {"route": ROUTE}})
    observed = service_observed(asked, optional_kinds=kinds)
    children = []
    for planned in of_kind(plan_service(observed).apply, HTTP_ROUTE):
        parent = {"parentRef": ROUTE["parentRefs"][0], "conditions": list(conditions)}
        metadata = planned["metadata"] | {"generation": 1, "uid": "r"}
        children.append(planned | {"metadata": metadata, "status": {"parents": [parent]}})
    observed = service_observed(asked, children=tuple(children), optional_kinds=kinds)
    status = service_status(observed, plan_service(observed), NOW)
    listed = (each for each in status["conditions"] if each["type"] == "RouteAccepted")
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


def test_a_service_without_a_route_has_no_such_condition() -> None:
    observed = service_observed(service())
    status = service_status(observed, plan_service(observed), NOW)
    assert "RouteAccepted" not in {each["type"] for each in status["conditions"]}
