"""An exception of our own: the object that met it says so, and the others are carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sluice_operator.apply.executor import executor
from sluice_operator.informer.dispatch import Dispatcher
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.informer.reader import StoreReader
from sluice_operator.informer.store import Objects
from sluice_operator.informer.workqueue import WorkQueue
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD, SERVICE_CHILDREN, Kind, Manifest
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.process.defects import Defects
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.service import reconcile as service_reconcile
from sluice_operator.service.observe import ServiceObserved, ServiceObserver
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.reconcile import ServiceReconcile

from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.statuses import condition, kstatus
from tests.operator.virtual_time import FakeClock, FakeTimer

SPEC = {"model": {"uri": "dummy://tiny"}}


class Operator:
    """A worker over an API server in memory, and a plan that raises for those in `broken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api, self.timer, self.metrics = (
            MemoryApi((INFERENCE_SERVICE, *SERVICE_CHILDREN, POD)),
            FakeTimer(),
            OperatorMetrics(),
        )
        self.plans = 0
        self.broken: dict[str, Callable[[], Exception]] = {}
        self.queue: WorkQueue[Key] = WorkQueue(self.timer)
        client, clock = ApiClient(self.api, lambda verb, plural: None), FakeClock()
        self.held: dict[Kind, Objects] = {}
        reader, writes = (
            StoreReader(self.held, client),
            executor(client, clock, "test", self.metrics.statuses),
        )
        kinds, volumes = OptionalKinds(client, clock), ImageVolumes(client, clock, "default")
        observer = ServiceObserver(reader, IMAGES, Nodes(client), kinds, volumes)
        reconcile = ServiceReconcile(observer, writes, clock)
        defects = Defects(reader, writes.reporter, clock)
        reported = defects.reported(INFERENCE_SERVICE, reconcile)
        self.dispatcher = Dispatcher(
            self.queue, {INFERENCE_SERVICE.kind: reported}, self.metrics, clock, draw=lambda: 1.0
        )
        monkeypatch.setattr(service_reconcile, "plan_service", self._plan)

    def _plan(self, observed: ServiceObserved) -> ServicePlan:
        self.plans += 1
        if error := self.broken.get(observed.service["metadata"]["name"]):
            raise error()
        return plan_service(observed)

    async def reconcile(self, *names: str) -> None:
        for name in names:
            self.queue.add(Key(INFERENCE_SERVICE.kind, "default", name))
        await self.settle()

    async def settle(self) -> None:
        """Lets the worker do all it can do now."""
        worker = asyncio.create_task(self.dispatcher.work())
        for _ in range(500):
            await asyncio.sleep(0)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    def remember(self) -> None:
        """The store has services as they are now, and is not told of what is written later."""
        store = self.held[INFERENCE_SERVICE] = Objects(INFERENCE_SERVICE)
        store.retain(None, set(), 0, store.mark())
        for (kind, _), item in self.api.objects.items():
            if kind == INFERENCE_SERVICE:
                store.put(item)

    def live(self, name: str) -> Manifest:
        return self.api.objects[INFERENCE_SERVICE, name]

    def condition_gauge(self, kind: str, reason: str) -> bool:
        """Whether the metric of conditions has this one."""
        lines = self.metrics.exposition().decode().splitlines()
        return any(f'reason="{reason}"' in line and f'type="{kind}"' in line for line in lines)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    made = Operator(monkeypatch)
    for name in ("chat", "other"):
        made.api.apply(INFERENCE_SERVICE, service(SPEC, name=name, uid=name) | {"status": {}})
    return made


async def test_the_object_that_meets_a_defect_says_so_and_others_go_on(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.broken["chat"] = lambda: KeyError("kind\nsecond line")
    await operator.reconcile("chat", "other")
    assert operator.live("other")["status"]["appliedGeneration"] == 1
    updated = condition(operator.live("chat")["status"], "Updated")
    assert (updated["status"], updated["reason"]) == ("False", "InternalError")
    assert "KeyError" in updated["message"]
    assert "\n" not in updated["message"]
    assert condition(operator.live("chat")["status"], "Ready")["status"] == "Unknown"
    assert kstatus(operator.live("chat")) == "Failed"
    told = [record for record in caplog.records if record.message == "InternalError"]
    failed = [record for record in caplog.records if record.message == "reconcile failed"]
    assert len(told) == len(failed) == 1
    assert failed[0].exc_info is not None
    assert operator.condition_gauge("Updated", "InternalError")


async def test_it_is_tried_again_more_seldom_and_written_once(operator: Operator) -> None:
    numbers = iter(range(100))
    operator.broken["chat"] = lambda: RuntimeError(f"object at {next(numbers)}")
    await operator.reconcile("chat")
    written = len(operator.api.writes)
    for seconds in (0.25, 0.5, 1.0):
        operator.timer.advance(seconds - 0.01)
        await operator.settle()
        before = operator.plans
        operator.timer.advance(0.01)
        await operator.settle()
        assert operator.plans == before + 1
    assert len(operator.api.writes) == written


async def test_what_serves_is_said_to_serve_and_all_is_well_once_the_defect_is_gone(
    operator: Operator,
) -> None:
    await operator.reconcile("chat")
    before = operator.live("chat")["status"]
    operator.broken["chat"] = lambda: TypeError()
    await operator.reconcile("chat")
    during = operator.live("chat")["status"]
    assert condition(during, "Ready") == condition(before, "Ready")
    assert during["url"] == before["url"]
    assert condition(during, "Updated")["message"].startswith(
        "A defect of the operator: TypeError."
    )
    operator.broken.clear()
    await operator.reconcile("chat")
    assert operator.live("chat")["status"] == before


async def test_what_was_written_since_the_store_was_told_stays(operator: Operator) -> None:
    operator.remember()
    await operator.reconcile("chat")
    before = operator.live("chat")["status"]
    assert before["url"]
    operator.broken["chat"] = lambda: RuntimeError("broken")
    await operator.reconcile("chat")
    during = operator.live("chat")["status"]
    assert condition(during, "Updated")["reason"] == "InternalError"
    assert during["url"] == before["url"]
    assert condition(during, "Ready") == condition(before, "Ready")


async def test_a_status_that_cannot_be_written_hides_no_defect(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    operator.broken["chat"] = lambda: RuntimeError("broken")
    operator.api.fails_at = "/status"
    await operator.reconcile("chat")
    assert 'error="RuntimeError"' in operator.metrics.exposition().decode()
    assert "internal error not reported" in [record.message for record in caplog.records]
