"""An InferenceService that has just been applied, seen by a person."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_operator.events import EVENT
from sluice_operator.observed import (
    INFERENCE_SERVICE,
)

from tests.operator.harness.cluster import Cluster, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat, is_ready, play_controllers, settled

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
    reasons = {event["reason"] for event in (await cluster.list(EVENT, namespace)).values()}
    assert {"Created", "AllReady"} <= reasons
