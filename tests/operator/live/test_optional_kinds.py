"""PodMonitors, PrometheusRules, InferencePools, HTTPRoutes: none where their kinds are not
installed; kept like every child where they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import yaml
from sluice_operator.cli.preview import preview
from sluice_operator.kube.kinds import (
    HTTP_ROUTE,
    INFERENCE_POOL,
    INFERENCE_SERVICE,
    OPTIONAL_CHILDREN,
    POD_MONITOR,
    PROMETHEUS_RULE,
    Kind,
    Manifest,
    of_kind,
)

from e2e.cluster.toolchain.gateway_api import (
    http_route_definition,
    inference_pool_definition,
)
from tests.operator.examples import IMAGES
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.plane import OWN_PLANE
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import proxying, status
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, settled

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
StartOperator = Callable[..., OperatorProcess]
DEFINITION = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"
)
NAMES = {"chat-engine", "chat-router"}


@pytest.fixture
async def optional_kinds(cluster: Cluster) -> AsyncIterator[None]:
    """Those of monitoring with any content, and the Gateway API's own definitions."""
    for kind in OPTIONAL_CHILDREN:
        await cluster.create(DEFINITION, definition(kind))
    for kind in OPTIONAL_CHILDREN:
        await cluster.until_served(kind)
    yield
    names = {definition(kind)["metadata"]["name"] for kind in OPTIONAL_CHILDREN}
    for name in names:
        await cluster.delete(DEFINITION, None, name)
    # A deleted definition stays until the server has removed its objects.
    await cluster.until(DEFINITION, None, names.isdisjoint)


def definition(kind: Kind) -> Manifest:
    if kind == HTTP_ROUTE:
        return dict(yaml.safe_load(http_route_definition().read_text()))
    if kind == INFERENCE_POOL:
        return dict(yaml.safe_load(inference_pool_definition().read_text()))
    group, _, version = kind.api_version.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": kind.kind, "plural": kind.plural}
    name = f"{kind.plural}.{group}"
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": DEFINITION.api_version,
        "kind": DEFINITION.kind,
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [served | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


def route_is(status: str, reason: str, kind: str = "RouteAccepted") -> Callable[[State], bool]:
    """Whether RouteAccepted, or another condition, of the service is so."""

    def check(services: State) -> bool:
        found = condition(services["chat"], kind)
        return (found.get("status"), found.get("reason")) == (status, reason)

    return check


async def test_without_the_kind_a_service_is_reconciled_all_the_same(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    log = operator.log.read_text()
    assert log.count("optional kind left out") == len(OPTIONAL_CHILDREN)
    assert "reconcile failed" not in log


async def test_where_the_kind_is_installed_its_objects_are_made_and_kept(
    cluster: Cluster, namespace: str, optional_kinds: None, start_operator: StartOperator
) -> None:
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, slo={"itlMilliseconds": 50}))
    await cluster.until(POD_MONITOR, namespace, lambda found: found.keys() == NAMES)
    await cluster.until(PROMETHEUS_RULE, namespace, lambda found: found.keys() == {"chat-slo"})
    await comes_to_rest(cluster, namespace)
    await cluster.delete(POD_MONITOR, namespace, "chat-engine")
    await cluster.until(POD_MONITOR, namespace, lambda found: found.keys() == NAMES)
    await comes_to_rest(cluster, namespace)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"slo": None}})
    await cluster.until(PROMETHEUS_RULE, namespace, lambda found: not found)


async def test_a_route_is_made_and_kept_and_what_gateways_say_of_it_is_told(
    cluster: Cluster, namespace: str, optional_kinds: None, start_operator: StartOperator
) -> None:
    start_operator()
    route = {"parentRefs": [{"name": "public"}], "hostnames": ["m.example.com"]}
    service = chat(namespace, router={"route": route})
    (planned,) = of_kind(preview(service, IMAGES).manifests, HTTP_ROUTE)
    await cluster.create(INFERENCE_SERVICE, service)
    found = await cluster.until(HTTP_ROUTE, namespace, lambda found: "chat" in found)
    assert found["chat"]["spec"] == planned["spec"], "the server drops and adds nothing"
    await cluster.until(INFERENCE_SERVICE, namespace, route_is("Unknown", "NoAnswer"))
    await comes_to_rest(cluster, namespace)
    status = answer(found["chat"], "Accepted", "True", "Accepted")
    await cluster.patch(HTTP_ROUTE, namespace, "chat", status, "status")
    await cluster.until(INFERENCE_SERVICE, namespace, route_is("True", "Accepted"))
    await comes_to_rest(cluster, namespace)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"router": None}})
    await cluster.until(HTTP_ROUTE, namespace, lambda found: not found)


def answer(of: Manifest, kind: str, status: str, reason: str) -> Manifest:
    """A status in which the Gateway `public` says this of the object."""
    condition = {
        "type": kind, "status": status, "reason": reason, "message": f"it is {reason}",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": of["metadata"]["generation"],
    }  # fmt: skip
    parent = {
        "parentRef": {"name": "public"},
        "controllerName": "example.com/c",
        "conditions": [condition],
    }
    return {"status": {"parents": [parent]}}


POOL: Manifest = {"endpointPickerRef": {"name": "picker", "port": 9002}}
POOL_ACCEPTED = "InferencePoolAccepted"


async def test_a_pool_is_made_and_kept_and_the_route_leads_to_it(
    cluster: Cluster, namespace: str, optional_kinds: None, start_operator: StartOperator
) -> None:
    start_operator()
    route = {"parentRefs": [{"name": "public"}]}
    service = chat(namespace, router={"route": route, "inferencePool": POOL})
    planned = preview(service, IMAGES).manifests
    (pool,), (planned_route,) = of_kind(planned, INFERENCE_POOL), of_kind(planned, HTTP_ROUTE)
    await cluster.create(INFERENCE_SERVICE, service)
    pools = await cluster.until(INFERENCE_POOL, namespace, lambda pools: "chat" in pools)
    added = {"appProtocol": "http"}  # by the API server: releases before 1.4 refuse the field
    assert pools["chat"]["spec"] == pool["spec"] | added
    await cluster.until(
        HTTP_ROUTE,
        namespace,
        lambda routes: routes.get("chat", {}).get("spec") == planned_route["spec"],
    )
    await cluster.until(
        INFERENCE_SERVICE, namespace, route_is("Unknown", "NoAnswer", POOL_ACCEPTED)
    )
    await comes_to_rest(cluster, namespace)

    refused = answer(pools["chat"], "ResolvedRefs", "False", "InvalidExtensionRef")
    await cluster.patch(INFERENCE_POOL, namespace, "chat", refused, "status")
    await cluster.until(
        INFERENCE_SERVICE, namespace, route_is("False", "InvalidExtensionRef", POOL_ACCEPTED)
    )
    accepted = answer(pools["chat"], "Accepted", "True", "Accepted")
    await cluster.patch(INFERENCE_POOL, namespace, "chat", accepted, "status")
    await cluster.until(INFERENCE_SERVICE, namespace, route_is("True", "Accepted", POOL_ACCEPTED))

    drifted = {"spec": {"targetPorts": [{"number": 9999}]}}
    await cluster.patch(INFERENCE_POOL, namespace, "chat", drifted)
    ports = pool["spec"]["targetPorts"]
    await cluster.until(
        INFERENCE_POOL, namespace, lambda pools: pools["chat"]["spec"]["targetPorts"] == ports
    )
    uid = pools["chat"]["metadata"]["uid"]
    await cluster.delete(INFERENCE_POOL, namespace, "chat")
    await cluster.until(
        INFERENCE_POOL,
        namespace,
        lambda pools: "chat" in pools and pools["chat"]["metadata"]["uid"] != uid,
    )
    await comes_to_rest(cluster, namespace)

    without = {"spec": {"router": {"inferencePool": None}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", without)
    await cluster.until(INFERENCE_POOL, namespace, lambda pools: not pools)
    routes = await cluster.until(HTTP_ROUTE, namespace, lambda routes: "chat" in routes)
    (backend,) = routes["chat"]["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["port"]) == ("Service", 80)


async def test_the_first_release_of_the_kind_takes_the_pool(
    cluster: Cluster, namespace: str
) -> None:
    body = yaml.safe_load(inference_pool_definition(first_release=True).read_text())
    await cluster.create(DEFINITION, body)
    await cluster.until_served(INFERENCE_POOL)
    service = chat(namespace, router={"inferencePool": POOL})
    (pool,) = of_kind(preview(service, IMAGES).manifests, INFERENCE_POOL)
    created = await cluster.create(INFERENCE_POOL, pool)
    assert created["spec"] == pool["spec"], "the server drops and adds nothing"
    await cluster.delete(DEFINITION, None, body["metadata"]["name"])
    await cluster.until(DEFINITION, None, lambda all: body["metadata"]["name"] not in all)


async def test_where_its_objects_may_not_be_listed_the_kind_is_as_good_as_absent(
    cluster: Cluster,
    namespace: str,
    optional_kinds: None,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        proxy.spoil = lambda seen: (
            status(403, "Forbidden") if POD_MONITOR.plural in seen.path else None
        )
        operator = start_operator(KUBECONFIG=str(kubeconfig))
        await cluster.create(INFERENCE_SERVICE, chat(namespace, slo={"itlMilliseconds": 50}))
        await cluster.until(PROMETHEUS_RULE, namespace, lambda found: found.keys() == {"chat-slo"})
        await cluster.until(INFERENCE_SERVICE, namespace, settled())
        log = operator.log.read_text()
        assert log.count("no right to list it") == 1
        assert "reconcile failed" not in log
