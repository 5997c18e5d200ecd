"""An InferenceService that has just been applied, seen by a person."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sluice_operator.observed import INFERENCE_SERVICE, POD

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
    assert status["pools"]["mixed"]["ready"] == 1
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
    started = time.monotonic()
    await cluster.patch(POD, namespace, pod, {"status": status}, "status")

    def names_the_pod(services: State) -> bool:
        ready = condition(services["chat"], "Ready")
        return ready["reason"] == "ImagePullBackOff" and pod in ready["message"]

    await cluster.until(INFERENCE_SERVICE, namespace, names_the_pod)
    assert time.monotonic() - started < 2.0
    await until_told(cluster, namespace, "ImagePullBackOff")
