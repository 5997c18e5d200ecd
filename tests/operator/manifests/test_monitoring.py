"""PodMonitors: made only where the kind is served, and each finds its pods and their port."""

from __future__ import annotations

from sluice_operator.kube.kinds import NETWORK_POLICY, POD_MONITOR, Manifest
from sluice_operator.service.plan import plan_service

from tests.operator.examples import of, pool_plan, service_observed


def _pods(plan_children: tuple[Manifest, ...]) -> list[Manifest]:
    return [m["spec"]["template"] for m in plan_children if m["kind"] == "Deployment"]


def test_where_the_kind_is_absent_nothing_of_it_is_planned() -> None:
    plan = plan_service(service_observed())
    assert POD_MONITOR.kind not in {manifest["kind"] for manifest in plan.apply}


def test_each_finds_the_pods_of_its_component_and_a_port_of_theirs() -> None:
    plan = plan_service(service_observed(optional_kinds=(POD_MONITOR,)))
    monitors = [m for m in plan.apply if m["kind"] == POD_MONITOR.kind]
    pods = _pods((*plan.apply, *pool_plan().apply))
    assert [m["metadata"]["name"] for m in monitors] == ["chat-engine", "chat-router"]
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (pod,) = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
        ports = {p["name"] for c in pod["spec"]["containers"] for p in c.get("ports", ())}
        assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= ports


def test_monitoring_and_the_operator_reach_the_metrics_of_engines_alone() -> None:
    assert _read_at(plan_service(service_observed()).apply) == [8080]


def _read_at(manifests: tuple[Manifest, ...]) -> list[int]:
    """The ports of engines that monitoring and the operator may reach."""
    policy = of(manifests, NETWORK_POLICY.kind, "chat-engine")
    return [port["port"] for port in policy["spec"]["ingress"][1]["ports"]]
