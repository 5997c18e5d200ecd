"""An InferenceService that has just been applied, seen by a person."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD

from e2e.cluster.controlplane_only import ApiServer
from e2e.kubectl import Kubectl
from e2e.up import KIND, SAMPLE, SAMPLE_NAMESPACE, SERVICE, apply_sample
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import until_told
from tests.operator.harness.scenery import (
    chat,
    chat_that_serves,
    is_ready,
    play_controllers,
    settled,
)

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


def test_the_sample_of_make_up_can_be_applied_again_by_hand(plane: ApiServer) -> None:
    apply_sample(Kubectl(plane))
    try:
        words = ("apply", "-n", SAMPLE_NAMESPACE, "-f", str(SAMPLE))
        again = subprocess.run(
            plane.kubectl_argv(*words), capture_output=True, text=True, check=True
        )
    finally:
        plane.kubectl("delete", KIND, SERVICE, "-n", SAMPLE_NAMESPACE)
    assert "unchanged" in again.stdout
    assert again.stderr == ""


async def test_from_apply_to_ready(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    service = await cluster.create(INFERENCE_SERVICE, chat(namespace))
    assert service["status"]["observedGeneration"] == -1, "the default status"
    found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
    assert condition(found["chat"], "Ready")["status"] == "False"
    assert condition(found["chat"], "Reconciling")["status"] == "True"

    await play_controllers(cluster, namespace)
    found = await cluster.until(INFERENCE_SERVICE, namespace, is_ready())
    status = found["chat"]["status"]
    assert status["url"] == f"http://chat.{namespace}.svc"
    assert status["pools"]["mixed"]["readyReplicas"] == 1
    assert condition(found["chat"], "Reconciling")["status"] == "False"
    await until_told(cluster, namespace, "Created")
    await until_told(cluster, namespace, "AllReady")


async def test_a_pod_that_fails_is_named_as_soon_as_it_does(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_that_serves(cluster, namespace)
    pods = await cluster.list(POD, namespace, "serving.sluice.dev/role=mixed")
    (pod,) = pods
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    container = {"name": "engine", "image": "a", "imageID": "", "ready": False, "restartCount": 0}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{**container, "state": {"waiting": waiting}}],
    }
    await cluster.patch(POD, namespace, pod, {"status": status}, "status")

    def names_the_pod(services: State) -> bool:
        ready = condition(services["chat"], "Ready")
        return ready["reason"] == "ImagePullBackOff" and pod in ready["message"]

    await cluster.until(INFERENCE_SERVICE, namespace, names_the_pod)
    await until_told(cluster, namespace, "ImagePullBackOff")
