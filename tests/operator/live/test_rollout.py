"""An edit that makes a new revision, as a person sees it who relies on what serves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sluice_operator.observed import DEPLOYMENT, INFERENCE_SERVICE, POD, Manifest

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat_that_serves, is_ready, play_controllers

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
    await asyncio.wait_for(watch.behind.wait(), 20)
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
