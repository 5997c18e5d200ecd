"""Objects of somebody else under the names that a service needs: refused, never taken over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE, SERVICE, SERVICE_CHILDREN

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


def reason(services: State) -> str:
    return str(condition(services["chat"], "Ready")["reason"])


async def test_a_name_that_is_taken_is_told_and_left_alone_until_it_is_free(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": namespace, "labels": {"app": "theirs"}},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 9}]},
    }
    before = await cluster.create(SERVICE, theirs)
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    start_operator()
    found = await cluster.until(INFERENCE_SERVICE, namespace, settled())
    ready = condition(found["chat"], "Ready")
    assert ready["reason"] == "NameTaken"
    assert "Service chat" in ready["message"]
    after = await cluster.get(SERVICE, namespace, "chat")
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    for kind in SERVICE_CHILDREN:
        items = (await cluster.list(kind, namespace, "serving.sluice.dev/service=chat")).values()
        assert list(items) == [], f"{kind.plural}: nothing is half done"

    await cluster.delete(SERVICE, namespace, "chat")
    await cluster.until(INFERENCE_SERVICE, namespace, lambda s: reason(s) != "NameTaken")
    await comes_to_rest(cluster, namespace)
    assert "chat-router" in await cluster.list(SERVICE_CHILDREN[0], namespace)
