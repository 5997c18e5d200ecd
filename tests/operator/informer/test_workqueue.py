"""The keyed queue: coalescing, one worker per key, back-off. Time is injected."""

from __future__ import annotations

import asyncio
import random

import pytest
from sluice_operator.informer.workqueue import Backoff, WorkQueue

from tests.operator.virtual_time import FakeTimer


@pytest.fixture
def timer() -> FakeTimer:
    return FakeTimer()


@pytest.fixture
def queue(timer: FakeTimer) -> WorkQueue[str]:
    return WorkQueue(timer)


async def test_a_key_added_many_times_is_taken_once(queue: WorkQueue[str]) -> None:
    for _ in range(5):
        queue.add("a")
    queue.add("b")
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert not queue.waiting()


async def test_keys_come_out_in_the_order_they_came_in(queue: WorkQueue[str]) -> None:
    for key in "cabac":
        queue.add(key)
    assert [await queue.take() for _ in range(3)] == ["c", "a", "b"]


async def test_a_key_added_while_a_worker_has_it_waits_for_that_worker(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    await queue.take()
    queue.add("a")
    queue.add("a")
    assert not queue.waiting()
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert not queue.waiting()


async def test_a_failed_key_comes_back_after_its_delay(
    queue: WorkQueue[str], timer: FakeTimer
) -> None:
    queue.add("a")
    await queue.take()
    queue.done("a", again_after_seconds=5.0)
    timer.advance(4.9)
    assert not queue.waiting()
    timer.advance(0.2)
    assert queue.waiting() == {"a"}


async def test_an_event_ends_the_back_off_and_leaves_no_second_run(
    queue: WorkQueue[str], timer: FakeTimer
) -> None:
    queue.add("a")
    await queue.take()
    queue.done("a", again_after_seconds=5.0)
    queue.add("a")
    assert await queue.take() == "a"
    queue.done("a")
    timer.advance(10.0)
    assert not queue.waiting()


async def test_a_change_during_a_failing_run_is_not_delayed(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await queue.take()
    queue.add("a")
    queue.done("a", again_after_seconds=300.0)
    assert queue.waiting() == {"a"}


async def test_workers_never_share_a_key_and_lose_none() -> None:
    queue: WorkQueue[int] = WorkQueue(asyncio.get_running_loop())
    running: set[int] = set()
    seen_version: dict[int, int] = {}
    version = dict.fromkeys(range(7), 0)
    choose = random.Random(0)
    progress = asyncio.Event()

    async def work() -> None:
        while True:
            key = await queue.take()
            assert key not in running
            running.add(key)
            seen = version[key]
            for _ in range(choose.randrange(4)):
                await asyncio.sleep(0)
            running.remove(key)
            seen_version[key] = seen
            progress.set()
            queue.done(key, again_after_seconds=0.0 if choose.random() < 0.2 else None)

    workers = [asyncio.create_task(work()) for _ in range(3)]
    for _ in range(2000):
        key = choose.randrange(7)
        version[key] += 1
        queue.add(key)
        if choose.random() < 0.3:
            await asyncio.sleep(0)
    while seen_version != version:
        progress.clear()
        await progress.wait()
    for worker in workers:
        worker.cancel()
    assert all(not worker.done() or worker.cancelled() for worker in workers)


def test_back_off_doubles_up_to_its_cap() -> None:
    backoff = Backoff(first_seconds=0.5, cap_seconds=8.0)
    delays = [backoff.delay_seconds(failures, 1.0) for failures in (1, 2, 3, 4, 5, 6, 10_000)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_jitter_takes_off_up_to_half() -> None:
    backoff = Backoff(first_seconds=1.0, cap_seconds=60.0)
    assert backoff.delay_seconds(1, 0.0) == 0.5
    assert backoff.delay_seconds(1, 0.5) == 0.75
