"""A change that this version refuses, on a service that serves: nothing moves, and it says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, Manifest

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest, snapshot
from tests.operator.harness.scenery import chat_that_serves, is_ready, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def children(cluster: Cluster, namespace: str) -> dict[str, Manifest]:
    found = await snapshot(cluster, namespace)
    del found["InferenceService chat"]
    return found


async def test_the_former_settings_keep_serving_and_the_condition_says_so(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    served = (await chat_that_serves(cluster, namespace))["status"]
    await comes_to_rest(cluster, namespace)
    before = await children(cluster, namespace)

    edit = {"spec": {"slo": {"percentile": 90}, "engine": {"chunkSize": 256}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)
    found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
    updated = condition(found["chat"], "Updated")
    assert (updated["status"], updated["reason"]) == ("False", "NotImplemented")
    assert updated["message"].endswith("; the settings of generation 1 keep serving")
    for part in ("Ready", "MixedReady", "RouterReady", "ModelAvailable"):
        assert condition(found["chat"], part)["status"] == "True", part
    assert found["chat"]["status"]["resolved"] == served["resolved"]
    assert found["chat"]["status"]["pools"]["mixed"]["summary"] == "1/1"
    await comes_to_rest(cluster, namespace)
    assert await children(cluster, namespace) == before

    back = {"spec": {"slo": None, "engine": None}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", back)
    found = await cluster.until(INFERENCE_SERVICE, namespace, is_ready())
    assert found["chat"]["status"]["appliedGeneration"] == 3
    await comes_to_rest(cluster, namespace)
    assert await children(cluster, namespace) == before


async def test_while_a_change_is_refused_numbers_are_carried_out_and_children_repaired(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    edit = {"slo": {"percentile": 90}, "replicas": 2}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": edit})
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await cluster.until(DEPLOYMENT, namespace, _has_engines(2))
    assert await operator.terminate() == 0
    await cluster.delete(DEPLOYMENT, namespace, "chat-router")
    more = {"spec": {"replicas": 3}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", more)
    start_operator("operator-1")
    await cluster.until(DEPLOYMENT, namespace, lambda found: "chat-router" in found)
    await cluster.until(DEPLOYMENT, namespace, _has_engines(3))
    found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
    assert condition(found["chat"], "Updated")["reason"] == "NotImplemented"
    await comes_to_rest(cluster, namespace)


def _has_engines(count: int) -> Callable[[State], bool]:
    def check(found: State) -> bool:
        (engines,) = (item for name, item in found.items() if name.startswith("chat-mixed-"))
        return bool(engines["spec"]["replicas"] == count)

    return check
