"""A deleted InferenceService: everything of it goes, also while no operator runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_contract.cluster.labels import SERVICE
from sluice_operator.kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, SERVICE_CHILDREN

from tests.operator.harness.cluster import Cluster, State
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import chat_at_rest, comes_to_rest
from tests.operator.harness.scenery import chat

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def everything_goes(cluster: Cluster, namespace: str) -> None:
    # The garbage collector learns of new kinds every 30 seconds.
    for kind in (INFERENCE_SERVICE, *SERVICE_CHILDREN):
        await cluster.until(kind, namespace, has_none_of_ours)


def has_none_of_ours(found: State) -> bool:
    return not any(SERVICE in item["metadata"].get("labels", {}) for item in found.values())


async def test_nothing_holds_a_deletion_up(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_at_rest(cluster, namespace)
    service = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    assert "finalizers" not in service["metadata"]
    assert "annotations" not in service["metadata"]
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    await everything_goes(cluster, namespace)


async def test_a_service_deleted_while_the_operator_is_down_leaves_nothing(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_at_rest(cluster, namespace)
    assert await operator.terminate() == 0
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    await everything_goes(cluster, namespace)


async def test_the_same_name_again_is_a_new_service(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_at_rest(cluster, namespace)
    operator.kill()
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    start_operator()
    service = await cluster.create(INFERENCE_SERVICE, chat(namespace))
    uid = service["metadata"]["uid"]

    def all_new(found: State) -> bool:
        owners = (item["metadata"]["ownerReferences"][0] for item in found.values())
        return "chat-router" in found and all(
            o["uid"] == uid for o in owners if o["kind"] == "InferenceService"
        )

    await cluster.until(DEPLOYMENT, namespace, all_new)
    await comes_to_rest(cluster, namespace)
