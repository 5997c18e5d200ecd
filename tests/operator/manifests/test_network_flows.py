"""The NetworkPolicies, evaluated against a table of flows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from sluice_contract.cluster import labels
from sluice_operator.cli.preview import preview
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.hub import HubAccess
from sluice_operator.manifests.network import MONITORING_LABEL, NAMESPACE_LABEL
from sluice_operator.service.observe import Installation
from sluice_operator.service.plan import plan_service

from tests.operator.api.documents import document
from tests.operator.examples import IMAGES, service, service_observed


class Place(NamedTuple):
    """One end of a flow: a pod's labels, and those of its namespace."""

    pod: dict[str, str]
    namespace: dict[str, str]


def _pod(component: str, service: str = "chat") -> Place:
    return Place({labels.SERVICE: service, labels.COMPONENT: component}, {"name": "default"})


def _engine(role: str, service: str = "chat") -> Place:
    found = _pod("engine", service)
    return found._replace(pod={**found.pod, labels.ROLE: role})


ENGINE, ROUTER = _pod("engine"), _pod("router")
STRANGER = Place({"app": "other"}, {"name": "elsewhere"})
MONITOR = Place({"app": "prometheus"}, {MONITORING_LABEL: "true"})
OPERATOR_POD = {labels.NAME: "sluice-operator", labels.COMPONENT: "operator"}
OPERATOR = Place(OPERATOR_POD, {NAMESPACE_LABEL: "sluice-system"})
IMPOSTOR = Place(OPERATOR_POD, {NAMESPACE_LABEL: "elsewhere"})
NEIGHBOUR = Place({"app": "other"}, {NAMESPACE_LABEL: "sluice-system"})

FLOWS = [
    (OPERATOR, ROUTER, 8080, True),
    (IMPOSTOR, ROUTER, 8080, False),
    (NEIGHBOUR, ROUTER, 8080, False),
    (OPERATOR, ENGINE, 8080, True),
    (OPERATOR, ENGINE, 8000, False),
    (IMPOSTOR, ENGINE, 8080, False),
    (STRANGER, ROUTER, 8000, True),
    (ROUTER, ENGINE, 8000, True),
    (ROUTER, ENGINE, 8080, False),
    (MONITOR, ENGINE, 8080, True),
    (MONITOR, ENGINE, 8000, False),
    (STRANGER, ENGINE, 8080, False),
    (ROUTER, STRANGER, 53, True),
    (ROUTER, STRANGER, 5353, True),
    (ENGINE, STRANGER, 5353, False),
    (ROUTER, STRANGER, 6443, True),
    (STRANGER, ENGINE, 8000, False),
    (_pod("router", "other"), ENGINE, 8000, False),
    (ENGINE, ENGINE, 8000, False),
    (ENGINE, STRANGER, 443, False),
    (ENGINE, ROUTER, 8000, False),
    (ROUTER, ENGINE, 15000, False),
    (STRANGER, ROUTER, 22, False),
    (ROUTER, STRANGER, 8000, False),
]


@pytest.mark.parametrize(("source", "target", "port", "allowed"), FLOWS)
def test_a_flow_is_allowed_or_denied(
    source: Place, target: Place, port: int, allowed: bool
) -> None:
    assert _flows({}, source, target, port) is allowed


PREFILL, DECODE = _engine("prefill"), _engine("decode")
MOONCAKE: Manifest = {"engine": {"kvTransfer": {"backend": "Mooncake"}}, "prefill": {}}  # fmt: skip
BETWEEN_POOLS = [
    (DECODE, PREFILL, 8998, True),
    (PREFILL, DECODE, 8998, False),
    (DECODE, DECODE, 8998, False),
    (ROUTER, PREFILL, 8998, False),
    (STRANGER, PREFILL, 8998, False),
    (MONITOR, PREFILL, 8998, False),
    (_engine("decode", "other"), PREFILL, 8998, False),
    (DECODE, _engine("prefill", "other"), 8998, False),
    *((*pair, port, True) for pair in ((DECODE, PREFILL), (PREFILL, DECODE))
      for port in (15000, 16001, 17000)),
    *((DECODE, PREFILL, port, False) for port in (14999, 17001, 8000)),
    (PREFILL, PREFILL, 15000, False),
    (DECODE, DECODE, 15000, False),
    (ROUTER, DECODE, 15000, False),
    (_engine("decode", "other"), PREFILL, 15000, False),
    (ROUTER, PREFILL, 8000, True),
    (ROUTER, DECODE, 8000, True),
    (MONITOR, DECODE, 8080, True),
    (MONITOR, DECODE, 8000, False),
    (STRANGER, DECODE, 8000, False),
    (DECODE, STRANGER, 443, False),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "port", "allowed"), BETWEEN_POOLS)
def test_the_kv_cache_goes_between_the_two_pools_of_a_service_alone(
    source: Place, target: Place, port: int, allowed: bool
) -> None:
    """Over TCP an engine may move to the other pool, and first ends what it has begun here."""
    assert _flows(MOONCAKE, source, target, port) is allowed
    engines = all(place in (PREFILL, DECODE) for place in (source, target))
    between = engines and (port == 8998 or 15000 <= port <= 17000)
    assert _flows({"prefill": {}}, source, target, port) is (allowed or between)


def test_the_port_that_the_spec_names_is_open_and_the_default_is_not() -> None:
    spec = {"engine": {"kvTransfer": {"bootstrapPort": 9000}}, "prefill": {}}
    assert _flows(spec, DECODE, PREFILL, 9000)
    assert not _flows(spec, DECODE, PREFILL, 8998)


@pytest.mark.parametrize("spec", [{}, {"tracing": {"endpoint": "http://c:4318"}}])
def test_dns_is_open_at_its_port_and_at_the_pods_of_openshift_by_udp_and_tcp(
    spec: Manifest,
) -> None:
    manifests = preview(document(HUB | spec), IMAGES).manifests
    policies = [m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"]
    rules = [rule for policy in policies for rule in policy.get("egress", ())]
    dns = [r for r in rules if any(port["protocol"] == "UDP" for port in r["ports"])]
    assert len(dns) == (3 if spec else 2), "routers, downloads, and engines that send spans"
    for rule in dns:
        assert rule.keys() == {"ports"}
        open_ports = {(port["port"], port["protocol"]) for port in rule["ports"]}
        assert open_ports == {(53, "UDP"), (53, "TCP"), (5353, "UDP"), (5353, "TCP")}


HUB: Manifest = {"model": {"uri": "hf://org/name"}}
FETCHING = Place({labels.SERVICE: "chat", labels.FETCHES: "true"}, {"name": "default"})
FETCHING_ENGINE = ENGINE._replace(pod={**ENGINE.pod, labels.FETCHES: "true"})
TO_A_HUB = [
    (FETCHING, STRANGER, 443, True),
    (FETCHING, STRANGER, 53, True),
    (FETCHING, STRANGER, 5353, True),
    (FETCHING_ENGINE, STRANGER, 443, True),
    (ENGINE, STRANGER, 443, False),
    (FETCHING, STRANGER, 6443, False),
    (FETCHING, ENGINE, 8000, False),
    (OPERATOR, FETCHING, 8080, True),
    (STRANGER, FETCHING, 8080, False),
    (STRANGER, FETCHING_ENGINE, 8000, False),
]


@pytest.mark.parametrize(("source", "target", "port", "allowed"), TO_A_HUB)
def test_only_pods_that_download_reach_a_hub(
    source: Place, target: Place, port: int, allowed: bool
) -> None:
    assert _flows(HUB, source, target, port) is allowed


def test_a_mirror_is_reached_at_its_port() -> None:
    found = Installation(hub=HubAccess("http://mirror.example.com:8081/hub"))
    observed = service_observed(service(HUB), installation=found)
    policies = [m["spec"] for m in plan_service(observed).apply if m["kind"] == "NetworkPolicy"]
    for port, allowed in ((8081, True), (443, True), (80, False)):
        assert _passes(policies, FETCHING, STRANGER, port, "egress", "to") is allowed


def test_a_proxy_is_reached_at_its_port() -> None:
    hub = HubAccess(https_proxy="http://proxy.example.com:3128")
    observed = service_observed(service(HUB), installation=Installation(hub=hub))
    policies = [m["spec"] for m in plan_service(observed).apply if m["kind"] == "NetworkPolicy"]
    for port, allowed in ((3128, True), (443, True), (80, False)):
        assert _passes(policies, FETCHING, STRANGER, port, "egress", "to") is allowed


def _flows(spec: Manifest, source: Place, target: Place, port: int) -> bool:
    manifests = preview(document(spec), IMAGES).manifests
    policies = [m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"]
    leaves = _passes(policies, source, target, port, "egress", "to")
    arrives = _passes(policies, target, source, port, "ingress", "from")
    return leaves and arrives


def test_the_api_server_is_reached_where_the_operator_was_told() -> None:
    plan = plan_service(service_observed(installation=Installation(api_server_ports=(16443,))))
    policies = [m["spec"] for m in plan.apply if m["kind"] == "NetworkPolicy"]
    for port, allowed in ((16443, True), (6443, False)):
        assert _passes(policies, ROUTER, STRANGER, port, "egress", "to") is allowed


def _passes(
    policies: list[Manifest], own: Place, other: Place, port: int, direction: str, peers: str
) -> bool:
    """Whether `own` lets the flow pass; a pod that no policy selects lets everything pass."""
    mine = [
        policy
        for policy in policies
        if _selects(policy["podSelector"], own.pod) and direction.title() in policy["policyTypes"]
    ]
    rules = [rule for policy in mine for rule in policy.get(direction, ())]
    return not mine or any(_rule_allows(rule, other, port, peers) for rule in rules)


def _rule_allows(rule: Manifest, other: Place, port: int, peers: str) -> bool:
    ports = rule.get("ports")
    if ports and not any(e["port"] <= port <= e.get("endPort", e["port"]) for e in ports):
        return False
    return peers not in rule or any(_peer_matches(peer, other) for peer in rule[peers])


def _peer_matches(peer: Manifest, other: Place) -> bool:
    if "namespaceSelector" in peer:
        from_there = _selects(peer["namespaceSelector"], other.namespace)
        return from_there and _selects(peer.get("podSelector", {"matchLabels": {}}), other.pod)
    return other.namespace == {"name": "default"} and _selects(peer["podSelector"], other.pod)


def _selects(selector: dict[str, Any], found: dict[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= found.items())
