"""An edit that makes a new revision, as a person sees it who relies on what serves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sluice_contract.cluster.labels import REVISION
from sluice_operator.apply.events import EVENT
from sluice_operator.kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, Manifest

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import (
    chat_that_serves,
    is_ready,
    play_controllers,
    settled,
)
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
EDIT: Manifest = {"spec": {"engine": {"chunkSize": 256}}}


class Watch:
    """What Ready has said of a service since its edit."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.behind = asyncio.Event()
        """Updated has said that the edit is not carried out yet."""

    def until_carried_out(self, services: State) -> bool:
        service = services["chat"]
        if service["status"]["observedGeneration"] != service["metadata"]["generation"]:
            return False
        self.ready.add(condition(service, "Ready")["status"])
        if condition(service, "Updated")["status"] == "False":
            self.behind.set()
        return self.behind.is_set() and bool(is_ready()(services))


async def test_a_service_stays_ready_while_the_former_revision_serves(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_that_serves(cluster, namespace)
    watch = Watch()
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", EDIT)
    watching = asyncio.create_task(
        cluster.until(INFERENCE_SERVICE, namespace, watch.until_carried_out)
    )
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await asyncio.wait_for(watch.behind.wait(), PATIENCE_SECONDS)
    await play_controllers(cluster, namespace)
    await watching
    assert watch.ready == {"True"}


async def test_a_service_is_not_ready_when_the_former_revision_goes_too_early(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_that_serves(cluster, namespace)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", EDIT)
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    (engine,) = await cluster.list(POD, namespace, "serving.sluice.dev/role=mixed")
    await cluster.delete(POD, namespace, engine)
    found = await cluster.until(
        INFERENCE_SERVICE,
        namespace,
        lambda services: condition(services["chat"], "Ready")["status"] == "False",
    )
    ready, updated = (condition(found["chat"], kind) for kind in ("Ready", "Updated"))
    assert ready["reason"] == updated["reason"]


ENGINES = "serving.sluice.dev/role=mixed"


def stable(services: State) -> str | None:
    """The revision that was complete last."""
    rollout: Manifest = services["chat"]["status"].get("rollout", {})
    found: str | None = rollout.get("stable", {}).get("mixed")
    return found


async def engines(cluster: Cluster, namespace: str) -> dict[str, int]:
    """The engines' Deployments, by revision, with their numbers of replicas."""
    found = (await cluster.list(DEPLOYMENT, namespace, ENGINES)).values()
    return {each["metadata"]["labels"][REVISION]: each["spec"]["replicas"] for each in found}


async def edited(cluster: Cluster, namespace: str, engine: Manifest) -> None:
    """Returns once everything is done that follows from other engine settings by itself."""
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"engine": engine}})
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)


async def evict_engines(cluster: Cluster, namespace: str) -> None:
    """No engine is ready any more, and the Deployments say so."""
    for name in await cluster.list(POD, namespace, ENGINES):
        await cluster.delete(POD, namespace, name)
    none = {"readyReplicas": 0, "availableReplicas": 0}
    for name in await cluster.list(DEPLOYMENT, namespace, ENGINES):
        await cluster.patch(DEPLOYMENT, namespace, name, {"status": none}, "status")
    await comes_to_rest(cluster, namespace)


async def comes_no_further(cluster: Cluster, namespace: str, stable: str | None) -> None:
    """The Deployments of other revisions than `stable` say that their deadline has passed."""
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    for name, found in (await cluster.list(DEPLOYMENT, namespace, ENGINES)).items():
        if found["metadata"]["labels"][REVISION] != stable:
            status = {"status": {"conditions": [late]}}
            await cluster.patch(DEPLOYMENT, namespace, name, status, "status")
    await comes_to_rest(cluster, namespace)


async def test_a_stuck_roll_out_and_an_eviction_take_away_no_engine(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    a = stable(await cluster.until(INFERENCE_SERVICE, namespace, stable))
    assert a is not None
    await edited(cluster, namespace, {"image": "nowhere/engine:1"})
    b = next(iter((await engines(cluster, namespace)).keys() - {a}))
    await evict_engines(cluster, namespace)
    assert await engines(cluster, namespace) == {a: 1, b: 1}

    operator.kill()
    operator.start()
    await edited(cluster, namespace, {"image": "nowhere/engine:2"})
    c = next(iter((await engines(cluster, namespace)).keys() - {a}))
    assert c != b
    assert await engines(cluster, namespace) == {a: 1, c: 1}

    await edited(cluster, namespace, {"image": None})
    assert await engines(cluster, namespace) == {a: 1}


async def test_what_serves_is_not_scaled_up_while_the_wanted_revision_comes(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_that_serves(cluster, namespace)
    a = stable(await cluster.until(INFERENCE_SERVICE, namespace, stable))
    assert a is not None
    await edited(cluster, namespace, {"image": "nowhere/engine:1"})
    plane.kubectl("scale", "infsvc/chat", "--replicas=3", "-n", namespace)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    found = await engines(cluster, namespace)
    assert (found.pop(a), set(found.values())) == (1, {3})


async def test_a_stuck_roll_out_blocks_no_scaling(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await chat_that_serves(cluster, namespace)
    a = stable(await cluster.until(INFERENCE_SERVICE, namespace, stable))
    await edited(cluster, namespace, {"image": "nowhere/engine:1"})
    await comes_no_further(cluster, namespace, a)
    for replicas in (2, 0, 3):
        plane.kubectl("scale", "infsvc/chat", f"--replicas={replicas}", "-n", namespace)
        await cluster.until(INFERENCE_SERVICE, namespace, settled())
        await comes_to_rest(cluster, namespace)
        found = await engines(cluster, namespace)
        assert found.pop(a or "") == replicas
        assert list(found.values()) == [min(replicas, 1)], "the wanted one gets no more"
    told = {event["reason"] for event in (await cluster.list(EVENT, namespace)).values()}
    assert not told & {"ScaleReverted", "Repaired"}, "nobody has edited anything"
