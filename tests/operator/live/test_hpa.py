"""`provider: External` with Kubernetes' own HorizontalPodAutoscaler and an external metric.

The external-metrics API is a CRD here: its objects have the form of the values that the controller
asks for, so the API server itself answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from sluice_contract.cluster.labels import FIELD_MANAGER
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, Kind, Manifest

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from tests.operator.conftest import OPERATOR_NAMESPACE, OPERATOR_USER
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.plane import install
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat

pytestmark = [pytest.mark.apiserver, pytest.mark.xdist_group("hpa")]
StartOperator = Callable[..., OperatorProcess]
POOL = "chat-mixed"
PATIENCE_SECONDS = 90.0
METRIC = Kind("external.metrics.k8s.io/v1beta1", "ExternalMetricValue", "queued")
HPA = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
TEXT: Manifest = {"type": "string"}
METRIC_CRD: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "queued.external.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "external.metrics.k8s.io",
        "scope": "Namespaced",
        "names": {
            "plural": "queued", "kind": "ExternalMetricValue",
            "listKind": "ExternalMetricValueList",
        },
        "versions": [
            {
                "name": "v1beta1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {"metricName": TEXT, "timestamp": TEXT, "value": TEXT},
                }},
            }
        ],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane whose controller manager scales."""
    with control_plane(["horizontal-pod-autoscaler-controller"]) as running:
        install(running)
        yield running


@pytest.fixture(scope="module")
def operator_kubeconfig(plane: ControlPlane) -> Path:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]
    return plane.user_kubeconfig(OPERATOR_USER, groups)


@pytest.fixture
async def metric(cluster: Cluster, namespace: str) -> AsyncIterator[str]:
    """Thirty requests are queued; yields the namespace."""
    await cluster.create(CRD, METRIC_CRD)
    await cluster.until_served(METRIC)
    value: Manifest = {
        "apiVersion": METRIC.api_version,
        "kind": METRIC.kind,
        "metadata": {"name": "now", "namespace": namespace},
        "metricName": "queued",
        "timestamp": "2026-01-01T00:00:00Z",
        "value": "30",
    }
    await cluster.create(METRIC, value)
    yield namespace
    await cluster.delete(CRD, None, METRIC_CRD["metadata"]["name"])


def hpa(namespace: str, kind: Kind = ENGINE_POOL, name: str = POOL) -> Manifest:
    """Ten queued requests an engine."""
    target = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name}
    external = {
        "metric": {"name": "queued"},
        "target": {"type": "AverageValue", "averageValue": "10"},
    }
    return {
        "apiVersion": HPA.api_version,
        "kind": HPA.kind,
        "metadata": {"name": "chat", "namespace": namespace},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 9,
            "metrics": [{"type": "External", "external": external}],
        },
    }


def provider(name: str) -> Manifest:
    scaling = {"provider": name, "minReplicas": 1, "maxReplicas": 9}
    return {"replicas": None, "autoscaling": scaling}


def replicas(count: int) -> Callable[[State], bool]:
    return lambda pools: POOL in pools and pools[POOL]["spec"]["replicas"] == count


def owned_by(manager: str) -> Callable[[State], bool]:
    return lambda pools: manager in managers_of(pools[POOL], "replicas")


def is_able(status: str) -> Callable[[State], bool]:
    """Whether the HPA says so of its target's scale."""

    def check(hpas: State) -> bool:
        conditions = (hpas["chat"].get("status") or {}).get("conditions") or ()
        return any(c["type"] == "AbleToScale" and c["status"] == status for c in conditions)

    return check


async def test_a_real_hpa_scales_a_service_itself_once_its_replicas_are_written(
    cluster: Cluster, metric: str, start_operator: StartOperator
) -> None:
    namespace = metric
    start_operator()
    await cluster.create(INFERENCE_SERVICE, chat(namespace, prefill={}))
    await cluster.until(ENGINE_POOL, namespace, lambda pools: len(pools) == 2)
    await cluster.create(HPA, hpa(namespace, INFERENCE_SERVICE, "chat"))
    found = await cluster.until(HPA, namespace, is_able("False"), PATIENCE_SECONDS)
    told = str(found["chat"]["status"]["conditions"])
    assert "spec.replicas" in told, told
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"replicas": 1}})
    pools = await cluster.until(
        ENGINE_POOL,
        namespace,
        lambda each: each["chat-decode"]["spec"]["replicas"] == 3,
        PATIENCE_SECONDS,
    )
    assert pools["chat-prefill"]["spec"]["replicas"] == 1


async def test_a_real_hpa_scales_the_pool_and_hands_it_over_as_it_is(
    cluster: Cluster, metric: str, start_operator: StartOperator
) -> None:
    namespace = metric
    start_operator()
    external = provider("External")
    del external["replicas"]
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **external))
    await cluster.until(ENGINE_POOL, namespace, replicas(1))
    await cluster.create(HPA, hpa(namespace))
    await cluster.until(ENGINE_POOL, namespace, replicas(3), PATIENCE_SECONDS)
    found = await cluster.until(
        INFERENCE_SERVICE,
        namespace,
        lambda all_: condition(all_["chat"], "ScalingActive")["reason"] == "ScaledFromOutside",
    )
    assert condition(found["chat"], "ScalingActive")["status"] == "Unknown"

    await cluster.delete(HPA, namespace, "chat")
    seen: list[int] = []

    def watched(last: Callable[[State], bool]) -> Callable[[State], bool]:
        def check(pools: State) -> bool:
            seen.append(pools[POOL]["spec"]["replicas"])
            return last(pools)

        return check

    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": provider("Internal")})
    await cluster.until(ENGINE_POOL, namespace, watched(owned_by(REPLICAS_MANAGER)))
    fixed = {"autoscaling": None, "replicas": 3}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": fixed})
    await cluster.until(ENGINE_POOL, namespace, watched(owned_by(FIELD_MANAGER)))
    assert set(seen) == {3}
