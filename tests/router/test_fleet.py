"""What is known about engines: kept across updates, counted exactly, avoided for a while."""

from __future__ import annotations

import asyncio

import pytest
from sluice_contract.cluster.labels import Role
from sluice_router.engines import (
    FIRST_BREAK_SECONDS,
    LONGEST_BREAK_SECONDS,
    PUBLIC_SECONDS,
    Endpoint,
    EngineState,
    Phase,
    break_seconds,
    condition,
)
from sluice_router.fleet import Fleet

from tests.patience import PATIENCE_SECONDS
from tests.router.fakes import load_report

A = Endpoint("a", "http://a", Role.MIXED, Phase.READY)
B = Endpoint("b", "http://b", Role.MIXED, Phase.READY)
A_LEAVING = Endpoint("a", "http://a", Role.MIXED, Phase.TERMINATING)


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def fleet(time: Time) -> Fleet:
    fleet = Fleet(time)
    fleet.replace_endpoints((A, B))
    return fleet


def state(fleet: Fleet, endpoint: Endpoint) -> EngineState:
    return next(engine for engine in fleet.engines() if engine.key == endpoint.key)


def test_nothing_is_discovered_before_the_first_list(time: Time) -> None:
    assert not Fleet(time).discovered


def test_a_refused_private_call_is_forgotten_after_a_while(fleet: Fleet, time: Time) -> None:
    def goes_on() -> bool:
        fleet.report(A.key, load_report(private_calls=True), own_inflight=0)
        return state(fleet, A).goes_on

    assert goes_on()
    fleet.refused_private_call(A.key)
    time.now += PUBLIC_SECONDS - 1
    assert not goes_on()
    time.now += 1
    assert goes_on()
    fleet.refused_private_call("gone")


def test_an_update_keeps_what_is_known(fleet: Fleet) -> None:
    fleet.report(A.key, load_report(queued_requests=4), own_inflight=2)
    with fleet.request(A.key):
        fleet.replace_endpoints((A_LEAVING, B))
        known = state(fleet, A)
        assert known.endpoint is A_LEAVING
        assert known.inflight == 1
        assert known.received is not None
        assert known.received.report.queued_requests == 4


def test_requests_are_counted_while_an_engine_is_off_the_list(fleet: Fleet) -> None:
    first, second = fleet.request(A.key), fleet.request(A.key)
    first.__enter__()
    fleet.replace_endpoints((B,))
    second.__enter__()
    fleet.replace_endpoints((A, B))
    assert state(fleet, A).inflight == 2
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert state(fleet, A).inflight == 0


def test_reports_and_failures_of_engines_that_left_are_dropped(fleet: Fleet) -> None:
    fleet.replace_endpoints((B,))
    fleet.report(A.key, load_report(), own_inflight=0)
    fleet.failed(A.key)
    fleet.answered(A.key)
    assert [engine.endpoint for engine in fleet.engines()] == [B]


def test_a_failed_engine_is_left_alone_for_a_moment_and_longer_each_time(
    fleet: Fleet, time: Time
) -> None:
    for failures in range(1, 4):
        fleet.failed(A.key)
        pause = break_seconds(failures)
        time.now += pause - 0.001
        assert condition(state(fleet, A), time.now) == "failing"
        time.now += 0.002
        assert condition(state(fleet, A), time.now) == "ready"
    fleet.failed(A.key)
    fleet.answered(A.key)
    assert condition(state(fleet, A), time.now) == "ready"
    fleet.failed(A.key)
    assert state(fleet, A).failed_until_seconds == time.now + FIRST_BREAK_SECONDS


def test_a_break_is_never_a_ban() -> None:
    assert break_seconds(10_000) == LONGEST_BREAK_SECONDS


async def test_waiting_ends_with_a_change(fleet: Fleet) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        waiting = asyncio.create_task(fleet.wait_for_change(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        fleet.replace_endpoints((A,))
        await waiting


async def test_waiting_ends_with_a_break(fleet: Fleet) -> None:
    fleet.failed(A.key)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await fleet.wait_for_change(60)
