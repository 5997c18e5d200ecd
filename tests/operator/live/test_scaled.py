"""A pool that somebody scales or edits by hand: taken back, and told once where it is looked at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import pytest
from sluice_operator.apply.events import EVENT
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import Request
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, POD, Manifest

from e2e.cluster.controlplane_only import ApiServer
from e2e.cluster.errors import CommandFailedError
from tests.operator.harness.cluster import Cluster, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import chat_at_rest, comes_to_rest, until_told
from tests.operator.harness.scenery import chat, is_ready, play_controllers, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]

EDITS: Final[tuple[Manifest, ...]] = (
    {"replicas": 0},
    {"image": "other:1"},
    {"replicas": 7},
    {"configRef": {"name": "other"}},
    {"drainSeconds": 0, "replicas": 0},
    {"replicas": 0},
)
ADDITIONS: Final[Manifest] = {
    "resources": {"limits": {"cpu": "1"}},
    "template": {"nodeSelector": {"disk": "fast"}},
}
"""What the InferenceService says nothing about."""


@pytest.fixture
async def at_rest(cluster: Cluster, namespace: str, start_operator: StartOperator) -> None:
    """The service `chat`, carried out by a running operator."""
    start_operator()
    await chat_at_rest(cluster, namespace)


async def told(cluster: Cluster, namespace: str, reason: str) -> list[Manifest]:
    events = (await cluster.list(EVENT, namespace)).values()
    return [event for event in events if event["reason"] == reason]


@pytest.mark.usefixtures("at_rest")
async def test_an_edit_by_hand_is_taken_back_and_told_once(
    plane: ApiServer, cluster: Cluster, namespace: str
) -> None:
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
    assert "InferenceService chat owns this; change spec.replicas" in scaled["note"]
    (repaired,) = await told(cluster, namespace, "Repaired")
    assert "change spec.engine.image there" in repaired["note"]
    described = plane.kubectl("describe", "enginepool", "chat-mixed", "-n", namespace)
    assert "ScaleReverted" in described


async def below(cluster: Cluster, namespace: str) -> dict[str, tuple[str, int]]:
    """The Deployments: which they are, and how often each was changed."""
    found = (await cluster.list(DEPLOYMENT, namespace)).values()
    return {
        item["metadata"]["name"]: (item["metadata"]["uid"], item["metadata"]["generation"])
        for item in found
    }


@pytest.mark.usefixtures("at_rest")
async def test_an_edited_pool_is_set_back_before_anything_follows_from_it(
    plane: ApiServer, cluster: Cluster, namespace: str
) -> None:
    before = await below(cluster, namespace)
    spec = (await cluster.get(ENGINE_POOL, namespace, "chat-mixed"))["spec"]

    for edit in EDITS:
        if edit.keys() == {"replicas"}:
            number = f"--replicas={edit['replicas']}"
            plane.kubectl("scale", "enginepool", "chat-mixed", number, "-n", namespace)
        else:
            await cluster.patch(ENGINE_POOL, namespace, "chat-mixed", {"spec": edit})
        await comes_to_rest(cluster, namespace)
        assert (await cluster.get(ENGINE_POOL, namespace, "chat-mixed"))["spec"] == spec, edit
        assert await below(cluster, namespace) == before, edit
    assert await told(cluster, namespace, "Scaled") == []
    assert await told(cluster, namespace, "RollingOut") == []


@pytest.mark.usefixtures("at_rest")
async def test_what_somebody_adds_to_a_pool_has_no_effect(cluster: Cluster, namespace: str) -> None:
    before = await below(cluster, namespace)

    await cluster.patch(ENGINE_POOL, namespace, "chat-mixed", {"spec": ADDITIONS})
    await comes_to_rest(cluster, namespace)
    assert await below(cluster, namespace) == before
    more = {"spec": {"replicas": 3}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", more)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    changed = (await below(cluster, namespace)).items() - before.items()
    assert len(changed) == 1, "the engines' Deployment, scaled"


@pytest.mark.usefixtures("at_rest")
async def test_a_pool_that_is_edited_while_its_service_is_refused_waits_and_says_so(
    cluster: Cluster, namespace: str
) -> None:
    before = await below(cluster, namespace)
    refused = {"spec": {"slo": {"percentile": 90}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", refused)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())

    await cluster.patch(ENGINE_POOL, namespace, "chat-mixed", {"spec": {"replicas": 0}})
    found = await cluster.until(
        ENGINE_POOL,
        namespace,
        lambda pools: condition(pools["chat-mixed"], "Ready")["reason"] == "Edited",
    )
    assert "spec.replicas by person" in condition(found["chat-mixed"], "Ready")["message"]
    await comes_to_rest(cluster, namespace)
    assert await below(cluster, namespace) == before

    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"slo": None}})
    await cluster.until(
        ENGINE_POOL, namespace, lambda pools: pools["chat-mixed"]["spec"]["replicas"] == 1
    )
    await comes_to_rest(cluster, namespace)
    assert await below(cluster, namespace) == before


@pytest.mark.parametrize("pools", [None, {"mixed": {"replicas": 2}}])
async def test_a_service_is_scaled_as_anything_else_is(
    plane: ApiServer,
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    pools: Manifest | None,
) -> None:
    service = chat(namespace, pools=pools) if pools else chat(namespace)
    await cluster.create(INFERENCE_SERVICE, service)
    start_operator()
    plane.kubectl("scale", "infsvc/chat", "--replicas=5", "-n", namespace)
    await cluster.until(
        ENGINE_POOL,
        namespace,
        lambda found: "chat-mixed" in found and found["chat-mixed"]["spec"]["replicas"] == 5,
    )
    await play_controllers(cluster, namespace)
    await cluster.until(INFERENCE_SERVICE, namespace, is_ready())
    scale = Request("GET", path(INFERENCE_SERVICE, namespace, "chat", "scale"))
    found = await cluster.send(scale)
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (5, 5)
    engines = await cluster.list(POD, namespace, found["status"]["selector"])
    assert len(engines) == 5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"accelerator": {}, "autoscaling": {"gpuBudget": 4}, "prefill": {}},
            "only with prefill.replicas",
        ),
        (
            {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
            "minReplicas and maxReplicas of autoscaling, not both",
        ),
    ],
)
async def test_a_service_that_cannot_be_scaled_so_says_what_to_change(
    plane: ApiServer, cluster: Cluster, namespace: str, spec: Manifest, says: str
) -> None:
    made = await cluster.create(INFERENCE_SERVICE, chat(namespace, **spec))
    with pytest.raises(CommandFailedError, match=re.escape(says)):
        plane.kubectl("scale", "infsvc/chat", "--replicas=5", "-n", namespace)
    found = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    assert found["spec"] == made["spec"]


@pytest.mark.usefixtures("at_rest")
async def test_an_edit_of_the_service_is_no_repair(cluster: Cluster, namespace: str) -> None:
    edit = {"spec": {"engine": {"chunkSize": 256}, "replicas": 3}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    for reason in ("Repaired", "ScaleReverted"):
        assert await told(cluster, namespace, reason) == []
