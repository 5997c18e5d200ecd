"""The operator scales an EnginePool by what a router says, on a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from sluice_operator.apply.events import EVENT
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.autoscale.journals import journal_lines
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    Manifest,
)

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.autoscale.world import load, row
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.fake_router import FakeRouter, fake_router
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat, play_controllers
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
POOL = "chat-mixed"
SCALED: Manifest = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
BUSY = load(row("engine", queued_work_seconds=30.0, queued_requests=30, queued_tokens=30_000))


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as found:
        yield found


@pytest.fixture
async def scaled(
    cluster: Cluster, namespace: str, start_operator: StartOperator, router: FakeRouter
) -> OperatorProcess:
    """The service `chat`, scaled by a running operator, with one idle engine."""
    operator = start_operator()
    router.load = load(row("engine"))
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **SCALED))
    await play_controllers(cluster, namespace, router_address=router.address)
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("True"))
    return operator


def scaling(status: str, reason: str | None = None) -> Callable[[State], bool]:
    def check(services: State) -> bool:
        found = condition(services["chat"], "ScalingActive")
        return found.get("status") == status and reason in (None, found["reason"])

    return check


def is_not_scaled(services: State) -> bool:
    """Whether the service says nothing of scaling, as its engines are of a fixed number."""
    status = services["chat"]["status"]
    return bool(status["conditions"]) and not condition(services["chat"], "ScalingActive")


def engines(count: int) -> Callable[[State], bool]:
    """Whether the engines' Deployment is asked for so many."""
    return lambda found: any(
        item["spec"]["replicas"] == count for name, item in found.items() if "router" not in name
    )


@pytest.mark.usefixtures("scaled")
async def test_queued_work_becomes_engines_and_is_told(
    cluster: Cluster, namespace: str, router: FakeRouter
) -> None:
    router.load = BUSY
    await cluster.until(DEPLOYMENT, namespace, engines(4))
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert managers_of(pool, "replicas") == {REPLICAS_MANAGER}
    found = await cluster.until(
        INFERENCE_SERVICE, namespace, lambda all_: "scaling" in all_["chat"]["status"]
    )
    status = found["chat"]["status"]
    assert status["scaling"].keys() == {"reason", "message", "start", "time"}
    assert "replicas" not in found["chat"]["spec"]
    events = await cluster.until(
        EVENT,
        namespace,
        lambda all_: any(e["regarding"]["kind"] == "InferenceService" and e["reason"] == "Scaled"
                         for e in all_.values()),
    )  # fmt: skip
    notes = [e["note"] for e in events.values() if e["reason"] == "Scaled"]
    assert any(note.startswith("Pool mixed: replicas from 1 to ") for note in notes)


@pytest.mark.usefixtures("scaled")
async def test_a_router_that_falls_silent_leaves_everything_as_it_is_and_says_so(
    cluster: Cluster, namespace: str, router: FakeRouter
) -> None:
    router.load = BUSY
    await cluster.until(DEPLOYMENT, namespace, engines(4))
    router.load = None
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("False"))
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert pool["spec"]["replicas"] == 4
    router.load = BUSY
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("True"))


@pytest.mark.usefixtures("scaled")
async def test_pausing_ends_it_and_fixed_replicas_take_over(
    cluster: Cluster, namespace: str, router: FakeRouter
) -> None:
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"paused": True}})
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("False", "Paused"))
    router.load = BUSY
    fixed = {"spec": {"paused": False, "autoscaling": None, "replicas": 2}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", fixed)
    found = await cluster.until(INFERENCE_SERVICE, namespace, is_not_scaled)
    assert "scaling" not in found["chat"]["status"]
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert pool["spec"]["replicas"] == 2


@pytest.mark.usefixtures("scaled")
async def test_applying_the_same_file_again_changes_no_number(
    plane: ApiServer, cluster: Cluster, namespace: str, router: FakeRouter, tmp_path: Path
) -> None:
    file = tmp_path / "service.json"
    file.write_text(json.dumps(chat(namespace, **SCALED)))
    apply = ("apply", "--server-side", "--field-manager=gitops", "--force-conflicts", "-f")
    plane.kubectl(*apply, str(file))
    router.load = BUSY
    await cluster.until(DEPLOYMENT, namespace, engines(4))
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    plane.kubectl(*apply, str(file))
    again = chat(namespace, **SCALED, slo={"itlMilliseconds": 500})
    file.write_text(json.dumps(again))
    plane.kubectl(*apply, str(file))
    await cluster.until(
        INFERENCE_SERVICE,
        namespace,
        lambda all_: all_["chat"]["status"]["observedGeneration"] == 2,
    )
    found = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert found["spec"]["replicas"] == pool["spec"]["replicas"] == 4
    assert managers_of(found, "replicas") == {REPLICAS_MANAGER}


@pytest.mark.usefixtures("scaled")
async def test_a_number_that_somebody_writes_by_hand_is_replaced_once_and_then_said(
    plane: ApiServer, cluster: Cluster, namespace: str, router: FakeRouter
) -> None:
    router.load = BUSY
    await cluster.until(DEPLOYMENT, namespace, engines(4))
    scale = ("scale", "enginepool", POOL, "-n", namespace, "--replicas")
    plane.kubectl(*scale, "2")
    await cluster.until(ENGINE_POOL, namespace, lambda all_: all_[POOL]["spec"]["replicas"] == 4)
    plane.kubectl(*scale, "3")
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("False", "ScaledByAnother"))
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert pool["spec"]["replicas"] == 3


async def test_engines_without_a_place_are_counted(
    cluster: Cluster, namespace: str, router: FakeRouter, scaled: OperatorProcess
) -> None:
    router.load = BUSY
    found = await cluster.until(DEPLOYMENT, namespace, engines(4))
    (template,) = (d["spec"]["template"] for name, d in found.items() if "router" not in name)
    pod: Manifest = {
        "metadata": {"name": "waits", "namespace": namespace, **template["metadata"]},
        "spec": template["spec"],
    }
    await cluster.create(POD, pod)
    nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"status": {"conditions": [nowhere | {"message": "0/1 nodes"}]}}
    await cluster.patch(POD, namespace, "waits", status, "status")
    await until_metric(scaled, f'unschedulable_replicas{{accelerator="CPU",name="chat",'
                       f'namespace="{namespace}",role="mixed"}} 1.0')  # fmt: skip


async def until_metric(operator: OperatorProcess, line: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
        while True:
            async with session.get(operator.metrics_url) as response:
                if f"sluice_autoscaler_{line}" in await response.text():
                    return
            await asyncio.sleep(0.1)


async def test_a_service_at_zero_is_woken_by_what_its_routers_hold(
    cluster: Cluster, namespace: str, start_operator: StartOperator, router: FakeRouter
) -> None:
    start_operator()
    router.load = load()
    asleep = {"minReplicas": 0, "maxReplicas": 2}
    await cluster.create(INFERENCE_SERVICE, chat(namespace, autoscaling=asleep))
    await play_controllers(cluster, namespace, router_address=router.address)
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("True"))
    found = await cluster.until(DEPLOYMENT, namespace, engines(0))
    maps = await cluster.list(CONFIG_MAP, namespace)
    files = [
        json.loads(m["data"]["router.json"]) for m in maps.values() if "router.json" in m["data"]
    ]
    assert [file["upstream"]["waitForEngineSeconds"] for file in files] == [600.0], found
    router.load = load(waiting=1)
    await cluster.until(DEPLOYMENT, namespace, engines(1))


async def test_what_was_decided_is_in_the_journal_once_the_operator_has_ended(
    cluster: Cluster, namespace: str, scaled: OperatorProcess
) -> None:
    assert await scaled.terminate() == 0
    found = await cluster.get(CONFIG_MAP, namespace, "chat-scaling")
    assert journal_lines(found), "a minute has not passed since the first decision"
