"""The operator scales an EnginePool by what a router says, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from sluice_operator.apply.events import EVENT
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, Manifest

from tests.operator.autoscale.world import load, row
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.fake_router import FakeRouter, fake_router
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat, play_controllers

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
POOL = "chat-mixed"
SCALED: Manifest = {"mixed": {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}}
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
    await cluster.create(INFERENCE_SERVICE, chat(namespace, pools=SCALED))
    await play_controllers(cluster, namespace, router_address=router.address)
    await cluster.until(INFERENCE_SERVICE, namespace, scaling("True"))
    return operator


def scaling(status: str, reason: str | None = None) -> Callable[[State], bool]:
    def check(services: State) -> bool:
        found = condition(services["chat"], "ScalingActive")
        return found.get("status") == status and reason in (None, found["reason"])

    return check


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
    assert status["scaling"].keys() == {"reason", "message", "time"}
    assert "replicas" not in found["chat"]["spec"]["pools"]["mixed"]
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
    fixed = {"spec": {"paused": False, "pools": {"mixed": {"autoscaling": None, "replicas": 2}}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", fixed)
    found = await cluster.until(INFERENCE_SERVICE, namespace, scaling("False", "FixedReplicas"))
    assert "scaling" not in found["chat"]["status"]
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert pool["spec"]["replicas"] == 2
