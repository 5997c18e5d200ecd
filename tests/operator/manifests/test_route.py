"""HTTPRoutes and InferencePools: what they match, what they take away, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.kube.kinds import HTTP_ROUTE, INFERENCE_POOL, POD_MONITOR, Manifest, of_kind
from sluice_operator.service.names import child_names
from sluice_operator.service.plan import plan_service

from tests.operator.examples import pool_plan, service, service_observed, service_plan

PARENTS = [{"name": "public", "namespace": "infra", "sectionName": "https"}]


def routed(**route: Any) -> Manifest:
    """The plan's HTTPRoute."""
    asked = service({"router": {"route": {"parentRefs": PARENTS, **route}}})
    plan = plan_service(service_observed(asked, optional_kinds=(HTTP_ROUTE,)))
    (found,) = (each for each in plan.apply if each["kind"] == HTTP_ROUTE.kind)
    return found


@pytest.mark.parametrize(
    ("route", "match", "taken_away"),
    [
        ({}, {"path": "/chat"}, True),
        ({"path": "/team/chat"}, {"path": "/team/chat"}, True),
        ({"path": "/"}, {"path": "/"}, False),
        ({"header": {}}, {"path": "/", "x-model": "chat"}, False),
        (
            {"header": {"name": "model", "value": "qwen"}, "path": "/v"},
            {"path": "/v", "model": "qwen"},
            True,
        ),
    ],
    ids=str,
)
def test_it_matches_by_path_or_header(
    route: Manifest, match: dict[str, str], taken_away: bool
) -> None:
    (rule,) = routed(**route)["spec"]["rules"]
    (found,) = rule["matches"]
    headers = {each["name"]: each["value"] for each in found.get("headers", ())}
    assert {"path": found["path"]["value"]} | headers == match
    assert [each["type"] for each in rule.get("filters", ())] == ["URLRewrite"] * taken_away


def test_it_leads_from_the_gateways_to_the_services_port_without_a_time_limit() -> None:
    found = routed(hostnames=["models.example.com"])
    spec, (rule,) = found["spec"], found["spec"]["rules"]
    assert spec["parentRefs"][0].items() >= PARENTS[0].items()
    assert spec["hostnames"] == ["models.example.com"]
    (backend,) = rule["backendRefs"]
    (front,) = (
        each
        for each in service_plan().apply
        if (each["kind"], each["metadata"]["name"]) == ("Service", "chat")
    )
    assert (backend["name"], backend["port"]) == ("chat", front["spec"]["ports"][0]["port"])
    assert rule["timeouts"]["request"] == "0s"


@pytest.mark.parametrize("kinds", [(), (POD_MONITOR,), (HTTP_ROUTE,)])
@pytest.mark.parametrize("asked", [False, True])
def test_it_is_planned_where_the_kind_is_and_it_is_asked_for(
    kinds: tuple[Any, ...], asked: bool
) -> None:
    spec = {"router": {"route": {"parentRefs": PARENTS}}} if asked else {}
    plan = plan_service(service_observed(service(spec), optional_kinds=kinds))
    wanted = asked and HTTP_ROUTE in kinds
    assert ("HTTPRoute" in {each["kind"] for each in plan.apply}) == wanted
    assert ((HTTP_ROUTE, "chat") in child_names(service(spec), kinds)) == wanted


def test_a_route_restarts_nothing() -> None:
    spec = {"router": {"route": {"parentRefs": PARENTS}}}
    plans = [service_plan(), service_plan(spec)]
    before, after = (
        [each for each in plan.apply if each["kind"] == "Deployment"] for plan in plans
    )
    assert before == after
    assert pool_plan().revision == pool_plan(spec).revision


KINDS = (INFERENCE_POOL, HTTP_ROUTE)
PICKER: Manifest = {"name": "picker", "port": 9002}


def pooled(picker: Manifest = PICKER, kinds: tuple[Any, ...] = KINDS, **observed: Any) -> Any:
    """The plan of a service with a route and an InferencePool."""
    route = {"parentRefs": PARENTS}
    asked = service({"router": {"route": route, "inferencePool": {"endpointPickerRef": picker}}})
    return plan_service(service_observed(asked, optional_kinds=kinds, **observed))


def backend(plan: Any) -> str:
    """Kind of what the HTTPRoute leads to."""
    (route,) = of_kind(plan.apply, HTTP_ROUTE)
    (found,) = route["spec"]["rules"][0]["backendRefs"]
    return str(found["kind"])


def test_a_pool_selects_the_routers_that_the_front_service_selects() -> None:
    plan = pooled()
    (pool,) = of_kind(plan.apply, INFERENCE_POOL)
    (front,) = (
        each
        for each in plan.apply
        if (each["kind"], each["metadata"]["name"]) == ("Service", "chat")
    )
    spec, (container,) = pool["spec"], plan.router["spec"]["template"]["spec"]["containers"]
    assert spec["selector"]["matchLabels"] == front["spec"]["selector"]
    (http,) = (port for port in container["ports"] if port["name"] == "http")
    assert spec["targetPorts"] == [{"number": http["containerPort"]}]
    assert spec["endpointPickerRef"] == {
        "group": "", "kind": "Service", "name": "picker", "port": {"number": 9002},
        "failureMode": "FailOpen",
    }  # fmt: skip
    (other,) = of_kind(pooled(PICKER | {"failureMode": "FailClose"}).apply, INFERENCE_POOL)
    assert other["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"


def test_a_route_leads_to_the_pool_once_that_is_there_and_to_the_service_before() -> None:
    first = pooled()
    assert backend(first) == "Service"
    (pool,) = of_kind(first.apply, INFERENCE_POOL)
    assert backend(pooled(children=(pool,))) == "InferencePool"
    going = pool | {"metadata": pool["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert backend(pooled(children=(going,))) == "Service"
    assert backend(pooled(kinds=(HTTP_ROUTE,), children=(pool,))) == "Service"


def test_of_a_gateway_that_knows_no_pools_the_route_leads_to_the_service_until_it_is_edited() -> (
    None
):
    (pool,) = of_kind(pooled().apply, INFERENCE_POOL)
    (route,) = of_kind(pooled(children=(pool,)).apply, HTTP_ROUTE)

    def unknown(generation: int) -> Manifest:
        condition = {"type": "ResolvedRefs", "status": "False", "reason": "InvalidKind"}
        said = [{"conditions": [condition | {"observedGeneration": generation}]}]
        metadata = route["metadata"] | {"generation": 2}
        return route | {"metadata": metadata, "status": {"parents": said}}

    assert backend(pooled(children=(pool, unknown(1)))) == "InferencePool", "of an earlier spec"
    refused = pooled(children=(pool, unknown(2)))
    assert backend(refused) == "Service"
    (held,) = of_kind(refused.apply, HTTP_ROUTE)
    assert backend(pooled(children=(pool, held))) == "Service"
    assert backend(pooled(PICKER | {"port": 9003}, children=(pool, held))) == "InferencePool"


@pytest.mark.parametrize("kinds", [(), (HTTP_ROUTE,), KINDS])
def test_a_pool_is_planned_where_the_kind_is(kinds: tuple[Any, ...]) -> None:
    plan = pooled(kinds=kinds)
    assert bool(list(of_kind(plan.apply, INFERENCE_POOL))) == (INFERENCE_POOL in kinds)
    pool = {"router": {"inferencePool": {"endpointPickerRef": PICKER}}}
    known = child_names(service(pool), kinds)
    assert ((INFERENCE_POOL, "chat") in known) == (INFERENCE_POOL in kinds)
    assert plan.router == service_plan().router, "it restarts nothing"
