"""How often requests are offered to another engine: a share of all, and where there is capacity."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import Any, cast

import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import Upstream
from sluice_contract.wire.private_calls import AnswerStart, EventComment, comment_line
from sluice_router.attempts import Call, Sender
from sluice_router.byte_budget import Body, ByteBudget
from sluice_router.engines import Endpoint, EngineState, Fleet, Phase, ReceivedReport, has_capacity
from sluice_router.errors import AttemptFailedError, EngineRefusedError, RetryReason, RouterError
from sluice_router.forward import Dispatcher, RequestHistory
from sluice_router.resume import Progress
from sluice_router.retry_budget import (
    EXPIRY_SECONDS,
    RETRIED_SHARE,
    RETRIES_PER_SECOND,
    RetryBudget,
)
from sluice_router.targets import Target, chooser

from tests.router import fakes

FULL: dict[str, Any] = {"queued_requests": 8, "max_queued_requests": 8}
PRIVATE: dict[str, Any] = {"private_calls": True, "answer_identity": "m1"}


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def retried(budget: RetryBudget, most: int, reason: RetryReason = "queue_full") -> int:
    """How many retries there are, `most` at the most."""
    for count in range(most):
        if budget.take(reason) is None:
            return count
    return most


@pytest.mark.parametrize("requests_per_second", [0, 20, 1000])
def test_retries_are_a_share_of_recent_requests_and_some_more(requests_per_second: int) -> None:
    clock, count, seconds = Clock(), 0, 60
    budget = RetryBudget(clock)
    for _ in range(seconds):
        clock.now += 1
        for _ in range(requests_per_second):
            budget.request()
            count += retried(budget, 3)
        count += retried(budget, 1000)
    allowed = RETRIED_SHARE * requests_per_second + RETRIES_PER_SECOND
    assert allowed * (seconds - 3) <= count <= allowed * (seconds + 1)


def test_retries_that_nobody_needed_expire() -> None:
    clock = Clock()
    budget = RetryBudget(clock)
    assert retried(budget, 1000) == RETRIES_PER_SECOND
    for _ in range(5000):
        budget.request()
    clock.now += 10 * EXPIRY_SECONDS
    assert retried(budget, 1000) == pytest.approx(RETRIES_PER_SECOND * EXPIRY_SECONDS, abs=1)


@pytest.mark.parametrize("reason", ["connect", "broken", "unavailable", "prefill"])
def test_engines_that_are_lost_have_retries_of_their_own(reason: RetryReason) -> None:
    budget = RetryBudget(Clock())
    own = 2 * RETRIES_PER_SECOND * EXPIRY_SECONDS
    for _ in range(int(own)):
        assert budget.take(reason) is not None
    assert retried(budget, 1000) == RETRIES_PER_SECOND
    assert budget.take(reason) is None
    assert retried(RetryBudget(Clock()), 1000, reason) == own + RETRIES_PER_SECOND


def test_a_retry_that_is_given_back_is_there_again() -> None:
    budget = RetryBudget(Clock())
    for _ in range(100):
        bucket = budget.take("queue_full")
        assert bucket is not None
        bucket.add(1)
    assert retried(budget, 1000) == RETRIES_PER_SECOND


async def test_requests_that_wait_for_an_engine_spend_no_more_than_there_is() -> None:
    """And give back what they took, when none comes."""
    clock = Clock()
    fleet = Fleet(clock)
    fleet.replace_endpoints([Endpoint("e", "http://e", Role.MIXED, Phase.READY)])
    sender = RefusingTogether("unavailable", cycle("7"))
    upstream = Upstream(wait_for_engine_seconds=5)
    choose = chooser([Role.MIXED], 1e9, random.Random(1))
    asks = Dispatcher(fleet, cast(Sender, sender), upstream, choose, clock, lambda _: None)
    tasks = [asyncio.create_task(refused(asks)) for _ in range(1000)]
    for _ in range(10):
        await asyncio.sleep(0)
    retries = RETRIES_PER_SECOND * (1 + 2 * EXPIRY_SECONDS) + 3 * RETRIED_SHARE * len(tasks)
    waiting = [task for task in tasks if not task.done()]
    assert len(waiting) == pytest.approx(retries, abs=3)
    assert retried(asks._retries, 1000, "unavailable") == 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert retried(asks._retries, 1000, "unavailable") == len(waiting)


@pytest.mark.parametrize(
    ("changes", "inflight", "expected"),
    [
        (None, 0, False),
        ({}, 15, True),
        (FULL, 0, False),
        (FULL | {"queued_requests": 7}, 0, True),
        ({"running_requests": 16, "max_queued_requests": 8}, 11, True),
        ({"running_requests": 16, "max_queued_requests": 8}, 12, False),
    ],
)
def test_a_report_says_whether_there_is_capacity(
    changes: dict[str, Any] | None, inflight: int, *, expected: bool
) -> None:
    """Four of our requests were there when it was made."""
    report = None if changes is None else fakes.load_report(**changes)
    received = None if report is None else ReceivedReport(report, 0.0, own_inflight=4)
    endpoint = Endpoint("e", "http://e", Role.MIXED, Phase.READY)
    assert has_capacity(EngineState(endpoint, inflight, received)) is expected


class Refusing:
    """In place of engines: each refuses, with the next of these values of Retry-After."""

    def __init__(self, reason: RetryReason, waits: Iterable[str]) -> None:
        self.asked: list[str] = []
        self._reason = reason
        self._waits: Iterator[str] = iter(waits)

    async def send(self, target: Target, call: Call) -> None:
        name = target.engine.endpoint.name
        self.asked.append(name)
        headers = {"retry-after": next(self._waits)}
        raise AttemptFailedError(self._reason, EngineRefusedError(429, headers, name.encode()))


class RefusingTogether(Refusing):
    """Refuses the requests of one moment once it has all of them."""

    async def send(self, target: Target, call: Call) -> None:
        await asyncio.sleep(0)
        await super().send(target, call)


def dispatcher(sender: Refusing, *reports: dict[str, Any]) -> Dispatcher:
    """Asks engines with these reports; a millisecond passes with each look at the clock."""
    clock = Clock()

    def passing() -> float:
        clock.now += 0.001
        return clock.now

    fleet = Fleet(passing)
    ends = [Endpoint(f"e{i}", f"http://e{i}", Role.MIXED, Phase.READY) for i in range(len(reports))]
    fleet.replace_endpoints(ends)
    for end, report in zip(ends, reports, strict=True):
        fleet.report(end.key, fakes.load_report(**report), own_inflight=0)
    choose = chooser([Role.MIXED], 1e9, random.Random(1))
    upstream = Upstream(wait_for_engine_seconds=0)
    return Dispatcher(fleet, cast(Sender, sender), upstream, choose, passing, lambda _: None)


async def refused(asks: Dispatcher, progress: Progress | None = None) -> RouterError:
    body = Body(ByteBudget(1 << 20))
    call = Call("POST", "/v1/completions", {"X-Request-Id": "r"}, body, progress)
    with pytest.raises(EngineRefusedError) as error:
        async with asks.open(call, RequestHistory()):
            pass
    return error.value


@pytest.mark.parametrize(("report", "most"), [(FULL, 200), ({}, 200 * (1 + RETRIED_SHARE))])
async def test_a_full_fleet_is_not_asked_three_times(report: dict[str, Any], most: float) -> None:
    """Reports that lag behind say that there is capacity: then the budget ends it."""
    sender = Refusing("queue_full", cycle("7"))
    asks = dispatcher(sender, report, report, report)
    for _ in range(200):
        await refused(asks)
    seconds = asks._clock()
    assert 200 <= len(sender.asked) <= most + (RETRIES_PER_SECOND * (1 + seconds), 0)[bool(report)]


@pytest.mark.parametrize(
    ("waits", "smallest"), [(["9", "4", "6"], "4"), (["", "x", "6"], "6"), (["", "", ""], None)]
)
async def test_the_first_429_passes_with_the_smallest_retry_after(
    waits: list[str], smallest: str | None
) -> None:
    sender = Refusing("queue_full", waits)
    error = await refused(dispatcher(sender, {}, {}, {}))
    assert len(set(sender.asked)) == 3
    assert error.body == sender.asked[0].encode()
    given = [value for name, value in error.headers.items() if name.lower() == "retry-after"]
    assert given == [smallest or ""]


async def test_after_a_429_only_those_with_capacity_are_asked() -> None:
    sender = Refusing("queue_full", cycle("7"))
    asks = dispatcher(sender, FULL, {}, FULL, FULL)
    for _ in range(10):
        before = len(sender.asked)
        await refused(asks)
        assert sender.asked[before + 1 :] == ["e1"] * (sender.asked[before] != "e1")


@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_answer_that_has_begun_is_resumed_without_retries_left(*, has_begun: bool) -> None:
    """And wherever there may be an engine; of other requests the first failure passes."""
    sender = Refusing("uncompiled" if not has_begun else "queue_full", cycle("7"))
    asks = dispatcher(sender, *[FULL | PRIVATE] * 3)
    retried(asks._retries, 1000)
    progress = Progress(1, streams=True, charge=lambda _: None)
    if has_begun:
        start = AnswerStart("c", 1, "ab", [1], 1, "m1")
        progress.read(comment_line(EventComment(start)) + b"data: {}\n\n")
    await refused(asks, progress)
    assert len(sender.asked) == (3 if has_begun else 1)


@pytest.mark.parametrize("has_progress", [False, True])
async def test_an_engine_that_hands_back_what_nobody_asked_for_is_no_way_to_wait(
    *, has_progress: bool
) -> None:
    sender = Refusing("handed_back", cycle("7"))
    progress = Progress(1, streams=True, charge=lambda _: None) if has_progress else None
    await refused(dispatcher(sender, *[PRIVATE] * 3), progress)
    assert len(sender.asked) == Upstream().max_attempts


def test_only_a_request_that_has_not_begun_keeps_its_first_arrival() -> None:
    progress = Progress(1, streams=True, charge=lambda _: None, waited_seconds=lambda: 400.0)
    assert progress.head().waited_seconds == 400.0
    start = AnswerStart("c", 1, "ab", [1], 1, "m1")
    progress.read(comment_line(EventComment(start)) + b"data: {}\n\n")
    assert progress.head().waited_seconds == 0.0
