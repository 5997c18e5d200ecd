"""What was complete last stays until another revision has shown that it works: where no status
tells which it was, and where the service sleeps."""

from __future__ import annotations

import pytest
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE

from tests.operator.harness.memory_cluster import MemoryCluster, running
from tests.operator.statuses import condition

pytestmark = pytest.mark.process


def _is_engine(deployment: str) -> bool:
    return deployment.startswith("chat-mixed-")


def _engines(cluster: MemoryCluster) -> dict[str, int]:
    """By Deployment."""
    return {
        name: cluster.api.objects[DEPLOYMENT, name]["spec"]["replicas"]
        for name in cluster.names(DEPLOYMENT)
        if _is_engine(name)
    }


async def test_a_status_that_is_lost_costs_no_engine_that_was_complete() -> None:
    cluster = await running(replicas=2)
    before = _engines(cluster)
    cluster.is_down = lambda name: _is_engine(name) and name not in before
    await cluster.edited(engine={"chunkSize": 64})
    assert sorted(_engines(cluster).values()) == [2, 2]
    for kind, name in ((INFERENCE_SERVICE, "chat"), (ENGINE_POOL, "chat-mixed")):
        cluster.api.objects[kind, name]["status"] = {}
    cluster.is_down = _is_engine
    await cluster.reconciled()
    assert before.items() <= _engines(cluster).items()


async def test_a_service_that_sleeps_wakes_with_what_was_complete_if_the_new_one_fails() -> None:
    cluster = await running(autoscaling={"minReplicas": 0, "maxReplicas": 2})
    for replicas in (1, 0):
        cluster.autoscaler_writes(replicas)
        await cluster.reconciled()
    (before,) = _engines(cluster)
    cluster.is_down = lambda name: _is_engine(name) and name != before
    await cluster.edited(engine={"chunkSize": 64})
    assert list(_engines(cluster).values()) == [0, 0]
    assert condition(cluster.status, "Updated")["reason"] == "ScaledToZero"
    assert condition(cluster.status, "Reconciling")["status"] == "False"
    cluster.autoscaler_writes(1)
    await cluster.reconciled()
    assert _engines(cluster)[before] == 1
    cluster.is_down = lambda name: False
    await cluster.reconciled()
    assert before not in _engines(cluster), "the new one works"
    assert condition(cluster.status, "Updated")["reason"] == "AllReady"


async def test_in_place_one_that_failed_gives_the_place_back_when_the_service_wakes_again() -> None:
    limits = {"minReplicas": 0, "maxReplicas": 2}
    cluster = await running(autoscaling=limits, rollout={"strategy": "InPlace"})
    for replicas in (1, 0):
        cluster.autoscaler_writes(replicas)
        await cluster.reconciled()
    (before,) = _engines(cluster)
    cluster.is_down = lambda name: _is_engine(name) and name != before
    await cluster.edited(engine={"chunkSize": 64})
    assert list(_engines(cluster).values()) == [0, 0]
    for replicas, engines in ((1, 0), (0, 0), (1, 1)):
        cluster.autoscaler_writes(replicas)
        await cluster.reconciled()
        assert _engines(cluster)[before] == engines
