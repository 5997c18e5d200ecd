"""Another release of the operator, over a service that serves: nothing restarts by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import SERVICE
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    Manifest,
)

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat_that_serves

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
NEXT: Final = {
    "PROGRAM": "tests.operator.harness.next_release",
    "SLUICE_ENGINE_IMAGE": "sluice/engine:next",
    "SLUICE_ROUTER_IMAGE": "sluice/router:next",
}


async def templates(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The pods of every Deployment: while these are the same, no pod restarts."""
    found = await cluster.list(DEPLOYMENT, namespace)
    return {name: item["spec"]["template"] for name, item in found.items()}


def upgrade(services: State) -> str:
    """What waits for an upgrade to be taken; empty when nothing does."""
    found = condition(services["chat"], "UpgradeAvailable")
    return str(found["message"]) if found.get("status") == "True" else ""


def scaled_to(replicas: int) -> Callable[[State], bool]:
    def check(found: State) -> bool:
        engines = [item for name, item in found.items() if not name.endswith("-router")]
        return all(item["spec"]["replicas"] == replicas for item in engines)

    return check


async def test_an_upgrade_of_the_operator_restarts_no_pod_until_it_is_taken(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    await comes_to_rest(cluster, namespace)
    before = await templates(cluster, namespace)
    resolved = (await cluster.get(INFERENCE_SERVICE, namespace, "chat"))["status"]["resolved"]
    assert await operator.terminate() == 0

    start_operator("operator-1", **NEXT)
    message = upgrade(await cluster.until(INFERENCE_SERVICE, namespace, upgrade))
    for said in (
        "pool mixed: image sluice/engine:test to sluice/engine:next",
        "pool mixed: maxRunningRequests 256 to 77",
        "pool mixed: its pods",
        "routers: image sluice/router:test to sluice/router:next",
    ):
        assert said in message
    assert await templates(cluster, namespace) == before

    plane.kubectl("scale", "infsvc/chat", "--replicas=3", "-n", namespace)
    await cluster.until(DEPLOYMENT, namespace, scaled_to(3))
    router: Manifest = {"spec": {"router": {"replicas": 3}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", router)
    await cluster.until(
        DEPLOYMENT, namespace, lambda found: found["chat-router"]["spec"]["replicas"] == 3
    )
    assert await templates(cluster, namespace) == before
    service = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    assert service["status"]["resolved"] == resolved

    taken = {"spec": {"rollout": {"upgrade": "2026-01-02"}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", taken)
    await cluster.until(INFERENCE_SERVICE, namespace, lambda found: not upgrade(found))
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    after = await templates(cluster, namespace)
    images = {item["spec"]["containers"][0]["image"] for item in after.values()}
    assert images == {"sluice/engine:test", "sluice/engine:next", "sluice/router:next"}


async def test_an_upgrade_restarts_no_pod_either_where_objects_have_lost_their_labels(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    await comes_to_rest(cluster, namespace)
    before = await templates(cluster, namespace)
    assert await operator.terminate() == 0
    lost = {"metadata": {"labels": {SERVICE: None}}}
    for kind in (ENGINE_POOL, CONFIG_MAP):
        for name in await cluster.list(kind, namespace, f"{SERVICE}=chat"):
            await cluster.patch(kind, namespace, name, lost)

    start_operator("operator-1", **NEXT)
    assert "pool mixed: image" in upgrade(
        await cluster.until(INFERENCE_SERVICE, namespace, upgrade)
    )
    labelled = await cluster.list(CONFIG_MAP, namespace, f"{SERVICE}=chat")
    assert len(labelled) == 2
    assert await templates(cluster, namespace) == before


async def test_a_change_that_is_taken_back_after_an_upgrade_returns_to_what_serves(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    await comes_to_rest(cluster, namespace)
    before = await templates(cluster, namespace)
    assert await operator.terminate() == 0
    start_operator("operator-1", **NEXT)
    stuck = {"spec": {"engine": {"image": "nowhere/engine:1"}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", stuck)
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"engine": None}})
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 2)
    assert await templates(cluster, namespace) == before
    pool = await cluster.get(ENGINE_POOL, namespace, "chat-mixed")
    assert pool["spec"]["image"] == "sluice/engine:test"
