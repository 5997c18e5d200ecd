"""A pool that somebody scales or edits by hand: taken back, and told once where it is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sluice_operator.events import EVENT
from sluice_operator.observed import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, Manifest

from e2e.cluster.controlplane_only import ControlPlane
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest, until_told
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def told(cluster: Cluster, namespace: str, reason: str) -> list[Manifest]:
    events = (await cluster.list(EVENT, namespace)).values()
    return [event for event in events if event["reason"] == reason]


async def test_an_edit_by_hand_is_taken_back_and_told_once(
    plane: ControlPlane, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    start_operator()
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 2)
    await comes_to_rest(cluster, namespace)
    assert await told(cluster, namespace, "Repaired") == []

    plane.kubectl("scale", "enginepool", "chat-mixed", "--replicas=7", "-n", namespace)
    await until_told(cluster, namespace, "ScaleReverted")
    pool = await cluster.get(ENGINE_POOL, namespace, "chat-mixed")
    assert pool["spec"]["replicas"] == 1
    await cluster.patch(ENGINE_POOL, namespace, "chat-mixed", {"spec": {"image": "other:1"}})
    await until_told(cluster, namespace, "Repaired")
    await comes_to_rest(cluster, namespace)

    (scaled,) = await told(cluster, namespace, "ScaleReverted")
    assert (scaled["type"], scaled["regarding"]["kind"]) == ("Warning", "EnginePool")
    assert "InferenceService chat owns this; change spec.pools.mixed.replicas" in scaled["note"]
    (repaired,) = await told(cluster, namespace, "Repaired")
    assert "change spec.engine.image there" in repaired["note"]
    described = plane.kubectl("describe", "enginepool", "chat-mixed", "-n", namespace)
    assert "ScaleReverted" in described


async def test_an_edit_of_the_service_is_no_repair(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    start_operator()
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    edit = {"spec": {"engine": {"chunkSize": 256}, "pools": {"mixed": {"replicas": 3}}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    for reason in ("Repaired", "ScaleReverted"):
        assert await told(cluster, namespace, reason) == []
