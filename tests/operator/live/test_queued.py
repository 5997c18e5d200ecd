"""A pod that Kueue holds back: labels and gates on a real API server. Kueue itself does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, POD, Manifest

from tests.operator.autoscale.world import load, row
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.fake_router import FakeRouter, fake_router
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, play_controllers

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
SCALED: Manifest = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
BUSY = load(row("engine", queued_work_seconds=30.0, queued_requests=30, queued_tokens=30_000))


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as found:
        yield found


async def test_a_gated_pod_is_capacity_blocked_with_the_name_of_its_queue(
    cluster: Cluster, namespace: str, start_operator: StartOperator, router: FakeRouter
) -> None:
    start_operator()
    router.load = load(row("engine"))
    service = chat(namespace, **SCALED)
    service["metadata"]["labels"] = QUEUE
    await cluster.create(INFERENCE_SERVICE, service)
    await play_controllers(cluster, namespace, router_address=router.address)
    await cluster.until(INFERENCE_SERVICE, namespace, says("ScalingActive", "True"))
    await gated_pod(cluster, namespace)

    router.load = BUSY
    services = await cluster.until(
        INFERENCE_SERVICE, namespace, says("ScalingActive", "True", "CapacityBlocked")
    )
    assert "wait for queue gpus" in condition(services["chat"], "ScalingActive")["message"]
    assert condition(services["chat"], "Ready")["status"] == "True", "the fleet serves"
    pool = await cluster.get(ENGINE_POOL, namespace, "chat-mixed")
    assert pool["spec"]["replicas"] == 1, "no more are asked for"


async def test_a_gated_pod_is_named_and_not_stuck_when_the_deadline_has_passed(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    service = chat(namespace)
    service["metadata"]["labels"] = QUEUE
    await cluster.create(INFERENCE_SERVICE, service)
    name = await gated_pod(cluster, namespace)
    late = {
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    live = await cluster.get(DEPLOYMENT, namespace, name)
    seen = {"observedGeneration": live["metadata"]["generation"], "conditions": [late]}
    await cluster.patch(DEPLOYMENT, namespace, name, {"status": seen}, "status")
    services = await cluster.until(
        INFERENCE_SERVICE, namespace, says("Updated", "False", "SchedulingGated")
    )
    message = condition(services["chat"], "Updated")["message"]
    assert "kueue.x-k8s.io/admission (queue gpus)" in message
    await comes_to_rest(cluster, namespace)
    services = await cluster.list(INFERENCE_SERVICE, namespace)
    assert condition(services["chat"], "Stalled")["status"] == "False"


async def gated_pod(cluster: Cluster, namespace: str) -> str:
    """A pod of the engines' Deployment as Kueue's webhook leaves it; the Deployment's name."""
    deployments = await cluster.until(
        DEPLOYMENT, namespace, lambda all_: any("router" not in name for name in all_)
    )
    name = next(name for name in deployments if "router" not in name)
    template = deployments[name]["spec"]["template"]
    assert template["metadata"]["labels"].items() >= QUEUE.items()
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    pod = {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {
            "name": f"{name}-gated",
            "namespace": namespace,
            "labels": template["metadata"]["labels"],
        },
        "spec": template["spec"] | {"schedulingGates": gates},
    }
    await cluster.create(POD, pod)
    return name


def says(kind: str, status: str, reason: str | None = None) -> Callable[[State], bool]:
    """Whether a condition of the service is so."""

    def check(services: State) -> bool:
        found = condition(services["chat"], kind)
        return found.get("status") == status and reason in (None, found["reason"])

    return check
