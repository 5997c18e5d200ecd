"""The workers: what a failure does to a key, and to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sluice_operator.informer.dispatch import Dispatcher
from sluice_operator.informer.keys import Key
from sluice_operator.informer.workqueue import WorkQueue
from sluice_operator.kube.errors import ApiError, LeaseLostError, UnavailableError
from sluice_operator.process.metrics import OperatorMetrics

from tests.operator.virtual_time import FakeClock, FakeTimer

CHAT = Key("InferenceService", "default", "chat")


class Bench:
    """One worker, its queue, and a reconcile that a test replaces."""

    def __init__(self) -> None:
        self.timer = FakeTimer()
        self.queue: WorkQueue[Key] = WorkQueue(self.timer)
        self.metrics = OperatorMetrics()
        self.runs: list[Key] = []
        self.look_again_seconds: float | None = None
        self.outcome: Callable[[Key], BaseException | None] = lambda _: None
        reconciles = {"InferenceService": self._reconcile, "EnginePool": self._reconcile}
        self.dispatcher = Dispatcher(
            self.queue, reconciles, self.metrics, FakeClock(), draw=lambda: 1.0
        )

    def _reconcile(self, key: Key) -> Awaitable[float | None]:
        self.runs.append(key)
        return self._end(self.outcome(key))

    async def _end(self, error: BaseException | None) -> float | None:
        if error is not None:
            raise error
        return self.look_again_seconds

    async def settle(self) -> None:
        """Lets the worker do all it can do now."""
        worker = asyncio.create_task(self.dispatcher.work())
        for _ in range(20):
            await asyncio.sleep(0)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_failure_is_tried_again_at_growing_intervals(bench: Bench) -> None:
    bench.outcome = lambda _: ApiError("PATCH /x", 422, "Invalid", "no")
    bench.queue.add(CHAT)
    await bench.settle()
    for wait in (0.25, 0.5, 1.0):
        runs = len(bench.runs)
        bench.timer.advance(wait - 0.01)
        await bench.settle()
        assert len(bench.runs) == runs
        bench.timer.advance(0.01)
        await bench.settle()
        assert len(bench.runs) == runs + 1


async def test_what_a_person_has_to_clear_is_looked_at_every_half_minute(bench: Bench) -> None:
    bench.outcome = lambda _: ApiError("PATCH /x", 403, "Forbidden", "exceeded quota")
    bench.queue.add(CHAT)
    await bench.settle()
    for _ in range(10):
        bench.timer.advance(30.0)
        await bench.settle()
    assert len(bench.runs) == 11


async def test_success_forgets_earlier_failures(bench: Bench) -> None:
    outcomes = iter([RuntimeError("x"), RuntimeError("x"), None, RuntimeError("x"), None])
    bench.outcome = lambda _: next(outcomes)
    bench.queue.add(CHAT)
    await bench.settle()
    for wait in (0.25, 0.5):
        bench.timer.advance(wait)
        await bench.settle()
    assert len(bench.runs) == 3
    bench.queue.add(CHAT)
    await bench.settle()
    bench.timer.advance(0.25)
    await bench.settle()
    assert len(bench.runs) == 5


async def test_an_outage_is_probed_often_but_not_sooner_than_asked(bench: Bench) -> None:
    bench.outcome = lambda _: UnavailableError("GET /x", "429", retry_after_seconds=40.0)
    bench.queue.add(CHAT)
    await bench.settle()
    bench.timer.advance(39.9)
    await bench.settle()
    assert len(bench.runs) == 1
    bench.outcome = lambda _: UnavailableError("GET /x", "refused")
    bench.timer.advance(0.1)
    await bench.settle()
    for _ in range(20):
        bench.timer.advance(5.0)
        await bench.settle()
    assert len(bench.runs) == 22


async def test_one_key_that_fails_does_not_hold_up_another(bench: Bench) -> None:
    other = Key("EnginePool", "default", "chat-mixed")
    bench.outcome = lambda key: RuntimeError("broken") if key == CHAT else None
    bench.queue.add(CHAT)
    bench.queue.add(other)
    await bench.settle()
    assert bench.runs == [CHAT, other]


async def test_runs_are_counted_by_kind_and_outcome(bench: Bench) -> None:
    bench.outcome = lambda key: RuntimeError("broken") if key == CHAT else None
    bench.queue.add(CHAT)
    bench.queue.add(Key("EnginePool", "default", "chat-mixed"))
    await bench.settle()
    text = bench.metrics.exposition().decode()
    total = 'sluice_operator_reconcile_total{kind="%s",outcome="%s"} 1.0'
    assert total % ("InferenceService", "error") in text
    assert total % ("EnginePool", "success") in text
    errors = 'reconcile_errors_total{error="RuntimeError",kind="InferenceService"} 1.0'
    assert errors in text


async def test_a_lost_lease_ends_the_worker_and_is_no_failed_reconcile(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.outcome = lambda _: LeaseLostError("the lease is not held")
    bench.queue.add(CHAT)
    with pytest.raises(LeaseLostError):
        await asyncio.wait_for(bench.dispatcher.work(), 1)
    assert caplog.records == []
    assert b"reconcile_errors_total{" not in bench.metrics.exposition()


async def test_a_reconcile_may_ask_to_look_again(bench: Bench) -> None:
    bench.look_again_seconds = 10.0
    bench.queue.add(CHAT)
    await bench.settle()
    bench.look_again_seconds = None
    for expected in (2, 2):
        bench.timer.advance(10.0)
        await bench.settle()
        assert len(bench.runs) == expected
