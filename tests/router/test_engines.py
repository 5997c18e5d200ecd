"""What is known about engines: kept across updates, counted exactly, avoided for a while; odd load
reports do no harm, and requests for an adapter go to engines that have it.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import LoadReport
from sluice_router.engines import (
    FIRST_BREAK_SECONDS,
    LONGEST_BREAK_SECONDS,
    PUBLIC_SECONDS,
    Endpoint,
    EngineState,
    Fleet,
    Phase,
    ReceivedReport,
    break_seconds,
    condition,
    reported_load,
    with_adapter,
)
from sluice_router.pick import Draw, pick_pair

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.fakes import load_report
from tests.router.test_pick import engine

A = Endpoint("a", "http://a", Role.MIXED, Phase.READY)
B = Endpoint("b", "http://b", Role.MIXED, Phase.READY)
A_LEAVING = Endpoint("a", "http://a", Role.MIXED, Phase.TERMINATING)
IDLE: dict[str, Any] = load_report().to_json_dict()
ODD: tuple[Any, ...] = (
    None, True, "", [], {}, -1, 2**53, 2**53 + 1, 10**400, 1e308, -0.5, math.nan, math.inf,
)  # fmt: skip


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
    def takes_private_calls() -> bool:
        fleet.report(A.key, load_report(private_calls=True), own_inflight=0)
        return state(fleet, A).takes_private_calls

    assert takes_private_calls()
    fleet.refused_private_call(A.key)
    time.now += PUBLIC_SECONDS - 1
    assert not takes_private_calls()
    time.now += 1
    assert takes_private_calls()
    fleet.refused_private_call("gone")


def test_an_update_keeps_what_is_known(fleet: Fleet) -> None:
    fleet.report(A.key, load_report(queued_requests=4), own_inflight=2)
    with fleet.request(A.key):
        fleet.replace_endpoints((A_LEAVING, B))
        known = state(fleet, A)
        assert known.endpoint is A_LEAVING
        assert known.inflight == 1
        assert known.received is not None
        assert known.received.report.figures.queued_requests == 4


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


@pytest.mark.parametrize("key", sorted(IDLE))
def test_what_is_accepted_can_be_compared_and_passed_on(key: str) -> None:
    for value in ODD:
        _check(IDLE | {key: value})


def _check(told: dict[str, Any]) -> None:
    text = json.dumps(told)
    try:
        report = LoadReport.model_validate_json(text, extra="ignore")
    except ValidationError:
        return
    fleet = Fleet(lambda: 0.0)
    fleet.replace_endpoints((A,))
    (state,) = fleet.engines()
    fleet.report(state.key, report, own_inflight=0)
    (state,) = fleet.engines()
    load = reported_load(state, 0.0, stale_seconds=1.0)
    assert load is not None
    assert not math.isnan(load)
    passed_on = report.model_dump_json(by_alias=True)
    assert LoadReport.model_validate_json(passed_on) == report, "the autoscaler reads it"


@pytest.mark.parametrize(("model", "asked"), [("poems", 1), ("base", 2), ("prose", 2)])
async def test_engines_without_the_adapter_are_not_asked(model: str, asked: int) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as one,
        fakes.running_engine(fakes.answers_json) as other,
    ):
        other.load = fakes.load_report(adapters={"poems": "poems@01"})
        async with fakes.running_router(one.url, other.url) as router:
            for _ in range(2):  # by the second time the first report is known
                other.polled.clear()
                await other.polled.wait()
            async with aiohttp.ClientSession() as client:
                for _ in range(8):
                    body = {"model": model, "prompt": "a"}
                    async with client.post(router.url + "/v1/completions", json=body) as answer:
                        assert answer.status == 200
                async with client.get(router.metrics_url + "/load") as answer:
                    rows = (await answer.json())["engines"]
    assert [row["report"]["adapters"] for row in rows] == [{}, {}], "no load, and long"
    assert len(other.calls) > 0
    assert (len(one.calls) > 0) == (asked == 2)


def has(name: str, role: Role, key: str | None) -> EngineState:
    return engine(name, role=role, adapters={"poems": key} if key else {})


@pytest.mark.parametrize(
    ("prefill", "decode", "asked"),
    [
        (["1", "1"], ["1", None], "p0 p1 d0"),
        (["1", "2", "2"], ["1", "2"], "p1 p2 d1"),
        (["1"], ["2"], ""),
        ([None], ["1"], ""),
        ([None], [None], "p0 d0"),
    ],
    ids=["loading", "another version comes", "unlike", "in one pool", "the model"],
)
def test_both_engines_of_a_pair_have_the_same_one(
    prefill: list[str | None], decode: list[str | None], asked: str
) -> None:
    engines = [has(f"p{n}", Role.PREFILL, key) for n, key in enumerate(prefill)]
    engines += [has(f"d{n}", Role.DECODE, key) for n, key in enumerate(decode)]
    assert [one.endpoint.name for one in with_adapter(engines, "poems")] == asked.split()


def test_the_role_of_an_engine_is_what_its_report_says() -> None:
    pool = Endpoint("a", "http://a", Role.PREFILL, Phase.READY)
    unknown = EngineState(pool)
    assert unknown.role is Role.PREFILL
    report = load_report(role=Role.DECODE, private_calls=True)
    changed = replace(unknown, received=ReceivedReport(report, 0.0, own_inflight=0))
    assert changed.role is Role.DECODE
    draws = Draw(0.1, 0.2, 0.3), Draw(0.1, 0.2, 0.3)
    found = pick_pair([changed], 0.0, draws, stale_seconds=5.0)
    assert (found.decode, found.message) == (None, "prefill: the service has no engines")
