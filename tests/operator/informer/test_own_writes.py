"""Our own status writes, as a watch tells them: reconciled again only where another reconcile might
decide something else."""

from __future__ import annotations

import asyncio
from collections import Counter
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_operator.apply.executor import executor
from sluice_operator.apply.status import COUNTS_SECONDS
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.informer.reader import StoreReader
from sluice_operator.informer.watch import NEEDED, Informer
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    Kind,
    Manifest,
)
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.service.observe import ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile

from tests.examples import examples
from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.statuses import condition
from tests.operator.virtual_time import FakeClock

SERVICE_KEY = Key(INFERENCE_SERVICE.kind, "default", "chat")
POOL_KEY = Key(ENGINE_POOL.kind, "default", "chat-mixed")


class Operator:
    """Both reconciles behind an informer, whose watches tell every write at once."""

    def __init__(self) -> None:
        self.api, self.clock = MemoryApi(NEEDED), FakeClock()
        self.queued: set[Key] = set()
        self.reconciled: Counter[Key] = Counter()
        client = ApiClient(self.api, lambda verb, plural: None)
        self.informer = Informer(client, self.clock, (), (), self.queued.add)
        for objects in self.informer.objects.values():
            objects.retain(None, set(), 0, objects.mark())
        client.written = self.informer.written
        reader = StoreReader(self.informer.objects, client)
        writes = executor(client, self.clock, "test", OperatorMetrics().statuses)
        kinds, volumes = OptionalKinds(client, self.clock), ImageVolumes(client, self.clock, "x")
        observer = ServiceObserver(reader, IMAGES, Nodes(client), kinds, volumes)
        self._reconciles: dict[str, Reconcile] = {
            INFERENCE_SERVICE.kind: ServiceReconcile(observer, writes, self.clock),
            ENGINE_POOL.kind: PoolReconcile(PoolObserver(reader), writes, self.clock),
        }
        self.api.apply(INFERENCE_SERVICE, service({}) | {"status": {}})

    def events_come(self, *kinds: Kind) -> None:
        """All that the watches of these kinds have to tell; of none: of all."""
        for kind in kinds or NEEDED:
            while self.api.late[kind]:
                self.informer.take(kind, *self.api.late[kind].pop(0))

    async def settled(self) -> None:
        """Until nothing is queued."""
        self.events_come()
        while self.queued:
            key = min(self.queued)  # pools before services
            self.queued.remove(key)
            await self.reconcile(key)
            self.reconciled[key] += 1
            self.events_come()

    async def reconcile(self, key: Key) -> None:
        await self._reconciles[key.kind](key)

    async def writes_once_more(self) -> list[str]:
        """What reconciles write that nobody has queued."""
        before = len(self.api.writes)
        for key in (POOL_KEY, SERVICE_KEY):
            await self.reconcile(key)
        return [request.path for request in self.api.writes[before:]]

    def pods_run(self, count: int) -> None:
        """So many of the engines that the pool's Deployment asks for are ready, and all routers."""
        for (kind, name), item in tuple(self.api.objects.items()):
            if kind == DEPLOYMENT:
                replicas = item["spec"]["replicas"]
                ready = replicas if name == "chat-router" else min(count, replicas)
                for number in range(ready):
                    self._pod_runs(f"{name}-{number}", item["spec"]["template"])
                status = dict.fromkeys(("replicas", "updatedReplicas"), replicas)
                status |= dict.fromkeys(("readyReplicas", "availableReplicas"), ready)
                status |= {"observedGeneration": item["metadata"]["generation"]}
                if item.get("status") != status:
                    self.api.apply(DEPLOYMENT, {"metadata": {"name": name}, "status": status}, "x")

    def pods_end(self) -> None:
        """No engine is there any more."""
        for kind, name in tuple(self.api.objects):
            if kind == POD and name.startswith("chat-mixed"):
                self.api.delete(kind, name)

    def _pod_runs(self, name: str, template: Manifest) -> None:
        if (POD, name) not in self.api.objects:
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            metadata = {"name": name, "labels": template["metadata"]["labels"]}
            body = {"metadata": metadata, "spec": template["spec"], "status": ready}
            self.api.apply(POD, body)

    def status(self, kind: Kind) -> Manifest:
        name = "chat" if kind == INFERENCE_SERVICE else "chat-mixed"
        status: Manifest = self.api.objects[kind, name]["status"]
        return status


async def complete(replicas: int = 1) -> Operator:
    operator = Operator()
    operator.api.edit(INFERENCE_SERVICE, "chat", {"replicas": replicas})
    for _ in range(2):
        await operator.settled()
        operator.pods_run(replicas)
    await operator.settled()
    assert condition(operator.status(INFERENCE_SERVICE), "Updated")["status"] == "True"
    return operator


async def test_a_pod_that_becomes_ready_costs_one_reconcile_and_one_write_of_each_kind() -> None:
    operator = await complete()
    operator.api.edit(INFERENCE_SERVICE, "chat", {"replicas": 5})
    await operator.settled()
    operator.pods_run(2)
    await operator.settled()
    for ready in (3, 4):
        operator.reconciled.clear()
        before = len(operator.api.writes)
        operator.pods_run(ready)
        await operator.settled()
        assert operator.reconciled == {POOL_KEY: 1, SERVICE_KEY: 1}
        assert len(operator.api.writes) == before + 2
        assert operator.status(INFERENCE_SERVICE)["summary"] == f"{ready}/5"


async def test_what_follows_from_a_status_is_not_left_out() -> None:
    operator = await complete()
    assert any(kind == CONTROLLER_REVISION for kind, _ in operator.api.objects)
    assert await operator.writes_once_more() == []


@pytest.mark.parametrize("kind", [INFERENCE_SERVICE, ENGINE_POOL], ids=attrgetter("kind"))
@pytest.mark.parametrize("values", [{"summary": "9/9"}, {"conditions": []}], ids=str)
async def test_a_status_that_somebody_edits_or_loses_is_repaired(
    kind: Kind, values: Manifest
) -> None:
    operator = await complete()
    operator.clock.elapsed_seconds += COUNTS_SECONDS
    before = operator.status(kind)
    name = "chat" if kind == INFERENCE_SERVICE else "chat-mixed"
    operator.api.edit(kind, name, values, manager="person", section="status")
    await operator.settled()
    assert operator.status(kind)["summary"] == before["summary"]
    reasons = [
        [(entry["type"], entry["reason"]) for entry in status["conditions"]]
        for status in (before, operator.status(kind))
    ]
    assert reasons[0] == reasons[1]


async def test_an_edit_that_comes_with_the_answer_to_our_own_write_is_carried_out() -> None:
    operator = await complete(2)
    operator.pods_end()
    operator.events_come(DEPLOYMENT, POD)
    operator.api.edit(INFERENCE_SERVICE, "chat", {"replicas": 3})
    operator.api.edit(ENGINE_POOL, "chat-mixed", {"drainSeconds": 7}, manager="person")
    for key in (POOL_KEY, SERVICE_KEY):
        await operator.reconcile(key)
    await operator.settled()
    spec = operator.api.objects[ENGINE_POOL, "chat-mixed"]["spec"]
    assert (spec["replicas"], spec["drainSeconds"]) == (3, 120)


EVENTS = st.one_of(
    st.integers(0, 4).map(lambda count: ("replicas", count)),
    st.integers(0, 4).map(lambda count: ("ready", count)),
    st.sampled_from([("edited", INFERENCE_SERVICE), ("edited", ENGINE_POOL), ("image", "b:1")]),
)


@pytest.mark.process
@given(st.lists(EVENTS, min_size=3, max_size=8))
@examples(20)
def test_at_rest_another_reconcile_writes_nothing(events: list[tuple[str, Any]]) -> None:
    async def run() -> None:
        operator = await complete()
        for what, value in events:
            if what == "edited":
                name = "chat" if value == INFERENCE_SERVICE else "chat-mixed"
                operator.api.edit(value, name, {"summary": "x"}, "person", "status")
            elif what == "ready":
                operator.pods_end()
                operator.pods_run(value)
            elif what == "image":
                operator.api.edit(INFERENCE_SERVICE, "chat", {"engine": {"image": value}})
            else:
                operator.api.edit(INFERENCE_SERVICE, "chat", {"replicas": value})
            operator.clock.elapsed_seconds += 1000
            await operator.settled()
            assert await operator.writes_once_more() == []

    asyncio.run(run())
