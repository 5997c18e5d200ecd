"""A deleted InferenceService: everything of it goes, also while no operator runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from sluice_contract.cluster import labels
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_CHILDREN,
)

from tests.operator.harness.cluster import NAMESPACE, Cluster, State
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import chat_at_rest, comes_to_rest
from tests.operator.harness.scenery import chat
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def everything_goes(cluster: Cluster, namespace: str) -> None:
    # The garbage collector learns of new kinds every 30 seconds.
    for kind in (INFERENCE_SERVICE, *SERVICE_CHILDREN):
        await cluster.until(kind, namespace, has_none_of_ours)


def has_none_of_ours(found: State) -> bool:
    return not any(labels.SERVICE in item["metadata"].get("labels", {}) for item in found.values())


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


async def test_in_a_namespace_that_is_deleted_the_log_has_one_line_and_the_status_stays(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    """No controller of namespaces runs here: it is played, but for the service, which another's
    finalizer may hold."""
    operator = start_operator(SLUICE_LOG_FORMAT="json")
    await chat_at_rest(cluster, namespace)
    before = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    await cluster.delete(NAMESPACE, None, namespace)
    logged = len(operator.log.read_text().splitlines())
    for kind in (DEPLOYMENT, SERVICE, CONFIG_MAP, SERVICE_ACCOUNT, ENGINE_POOL):
        for name, item in (await cluster.list(kind, namespace)).items():
            if labels.SERVICE in item["metadata"].get("labels", {}):
                await cluster.delete(kind, namespace, name)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:  # no event says so
            if "namespace is being deleted" in operator.log.read_text():
                break
            await asyncio.sleep(0.05)
    assert await operator.terminate() == 0
    lines = [json.loads(line) for line in operator.log.read_text().splitlines()[logged:]]
    assert [line["event"] for line in lines] == [
        "namespace is being deleted: nothing is created in it any more",
        "leadership given up",
    ]
    after = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    stalled = [
        [condition for condition in found["status"]["conditions"] if condition["type"] == "Stalled"]
        for found in (before, after)
    ]
    assert stalled[0] == stalled[1]


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
