"""Reconciles over a store that is late, by another amount for each kind: what is written never
becomes older, nothing wanted is deleted, and in the end everything is as asked for last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sluice_contract.cluster import labels
from sluice_operator.apply.executor import executor
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.informer.reader import StoreReader
from sluice_operator.informer.store import Objects
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import UnavailableError
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
)
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.service.observe import ServiceObserver
from sluice_operator.service.reconcile import DRAINING_SECONDS, ServiceReconcile

from tests.examples import examples
from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.virtual_time import FakeClock

KINDS = (INFERENCE_SERVICE, *SERVICE_CHILDREN, POD)
FOLLOWED = (INFERENCE_SERVICE, ENGINE_POOL, DEPLOYMENT)
"""The kinds whose watches are late in these tests."""
SERVICE_KEY = Key(INFERENCE_SERVICE.kind, "default", "chat")
POOL_KEY = Key(ENGINE_POOL.kind, "default", "chat-mixed")


class LateStore(RuleBasedStateMachine):
    """A person edits, reconciles run, and events of each kind come when they come."""

    @initialize()
    def a_service_is_there(self) -> None:
        self.api, self.asked = MemoryApi(KINDS), [1]
        self.objects = {kind: Objects(kind) for kind in KINDS}
        for objects in self.objects.values():
            objects.retain(None, set(), 0, objects.mark())
        client, clock = ApiClient(self.api, lambda verb, plural: None), FakeClock()
        client.written = self.written
        reader = StoreReader(self.objects, client)
        writes = executor(client, clock, "test", OperatorMetrics().statuses)
        kinds, volumes = OptionalKinds(client, clock), ImageVolumes(client, clock, "default")
        services = ServiceObserver(reader, IMAGES, Nodes(client), kinds, volumes)
        self.service = ServiceReconcile(services, writes, clock)
        self.pool = PoolReconcile(PoolObserver(reader), writes, clock)
        self.api.apply(INFERENCE_SERVICE, service(self.spec(1)) | {"status": {}})
        self.everything_comes_and_is_carried_out()

    def written(self, kind: Kind, result: Manifest) -> None:
        self.objects[kind].put(result)

    @rule(replicas=st.integers(1, 9))
    def somebody_asks_for_another_number(self, replicas: int) -> None:
        if replicas not in self.asked:
            self.asked.append(replicas)
            self.api.edit(INFERENCE_SERVICE, "chat", self.spec(replicas))

    @rule(kind=st.sampled_from(FOLLOWED), count=st.integers(1, 3))
    def some_events_come(self, kind: Kind, count: int) -> None:
        for _ in range(min(count, len(self.api.late[kind]))):
            self.one_event(kind)

    @rule()
    def the_service_is_reconciled(self) -> None:
        self.reconciled(self.service, SERVICE_KEY)

    @rule()
    def the_pool_is_reconciled(self) -> None:
        self.reconciled(self.pool, POOL_KEY)

    @rule()
    def everything_comes_and_is_carried_out(self) -> None:
        for _ in range(12):
            self.everything_comes()
            before = len(self.api.writes)
            self.reconciled(self.service, SERVICE_KEY)
            self.reconciled(self.pool, POOL_KEY)
            if len(self.api.writes) == before:
                break
        else:
            raise AssertionError("it never comes to rest")
        assert {count for _, count in self.counts()} == {self.asked[-1]}

    def everything_comes(self) -> None:
        for kind in KINDS:
            while self.api.late[kind]:
                self.one_event(kind)

    def reconciled(self, reconcile: Any, key: Key) -> None:
        before = dict(self.counts())
        with suppress(UnavailableError):  # where a test has told the API server to fail
            asyncio.run(reconcile(key))
        for name, count in self.counts():
            known = before.get(name, count)
            assert self.asked.index(count) >= self.asked.index(known), f"{name}: {known} → {count}"
        assert not any(each.method == "DELETE" for each in self.api.writes), "all is wanted"

    def counts(self) -> Iterator[tuple[str, int]]:
        """How many pods each object asks for that follows from the spec."""
        for (kind, name), item in self.api.objects.items():
            if kind in (ENGINE_POOL, DEPLOYMENT):
                yield f"{kind.kind} {name}", item["spec"]["replicas"]

    def one_event(self, kind: Kind) -> None:
        event, item = self.api.late[kind].pop(0)
        objects = self.objects[kind]
        objects.remove(item) if event == "DELETED" else objects.put(item)

    def spec(self, replicas: int) -> Manifest:
        return {"router": {"replicas": replicas}, "replicas": replicas}


@pytest.mark.process
class TestLateStore(LateStore.TestCase):  # type: ignore[misc,valid-type]
    settings = examples(40, stateful_step_count=14)


def test_what_a_reconcile_has_read_from_the_api_server_is_known_to_the_next() -> None:
    late = LateStore()
    late.a_service_is_there()
    late.somebody_asks_for_another_number(5)
    late.everything_comes_and_is_carried_out()
    late.somebody_asks_for_another_number(3)
    late.some_events_come(INFERENCE_SERVICE, 3)
    late.somebody_asks_for_another_number(2)
    late.api.fails_at = "/status"  # whose answer would tell as well
    late.the_service_is_reconciled()
    assert dict(late.counts())["EnginePool chat-mixed"] == 2, "it takes engines away: read anew"
    late.the_service_is_reconciled()
    late.api.fails_at = None
    late.everything_comes_and_is_carried_out()


def test_engines_of_another_mode_whose_pool_has_gone_are_looked_at_again() -> None:
    late = LateStore()
    late.a_service_is_there()
    budget = {"accelerator": {"count": 1}, "autoscaling": {"gpuBudget": 4}}
    late.api.edit(INFERENCE_SERVICE, "chat", budget)
    found = {labels.SERVICE: "chat", labels.ROLE: "decode"}
    engine = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    metadata = {"name": "d", "namespace": "default", "labels": found}
    late.api.apply(POD, {"metadata": metadata, "spec": {"containers": [engine]}})
    late.everything_comes()
    assert asyncio.run(late.service(SERVICE_KEY)) == DRAINING_SECONDS
