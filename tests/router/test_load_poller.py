"""Following load reports: fresh ones arrive, bad ones change nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web
from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import LoadFollowing
from sluice_contract.wire.load import LoadReport
from sluice_router.engines import Endpoint, Fleet, Phase, condition
from sluice_router.load_poller import LoadPoller
from sluice_router.upstream import open_session

from tests.router.fakes import load_report

FINGERPRINT = {
    "model": "m",
    "pageSizeTokens": 16,
    "kvDtype": "float32",
    "layout": "page-layer-kv-token-head-dim",
    "tensorParallelSize": 1,
}
GOOD = load_report(queued_requests=3).to_json_dict()


@asynccontextmanager
async def polled(answer: web.Response | None) -> AsyncIterator[tuple[Fleet, LoadPoller]]:
    """A poller of one engine that answers so; None never answers."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return answer

    app = web.Application()
    app.router.add_get("/load", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    fleet = Fleet(asyncio.get_running_loop().time)
    fleet.replace_endpoints([Endpoint("a", url, Role.MIXED, Phase.READY)])
    async with open_session(1.0) as session:
        settings = LoadFollowing(timeout_seconds=0.1 if answer is None else 5.0)
        yield fleet, LoadPoller(fleet, session, settings, random.Random(1))
    await runner.cleanup()


def report_of(fleet: Fleet) -> LoadReport | None:
    received = fleet.engines()[0].received
    return received.report if received is not None else None


async def test_a_report_is_taken_over() -> None:
    async with polled(web.json_response(GOOD)) as (fleet, poller):
        await poller.poll_all()
        report = report_of(fleet)
        assert report is not None
        assert report.queued_requests == 3


async def test_a_report_with_many_adapters_is_taken_over() -> None:
    names = {f"{number:0128}": "x" * 512 for number in range(256)}
    told = GOOD | {"adapters": dict.fromkeys(names, "key"), "adaptersFailed": names}
    async with polled(web.json_response(told)) as (fleet, poller):
        await poller.poll_all()
        report = report_of(fleet)
        assert report is not None
        assert report.adapters_failed == names


async def test_our_own_requests_at_the_time_of_asking_are_noted() -> None:
    async with polled(web.json_response(GOOD)) as (fleet, poller):
        with fleet.request(fleet.engines()[0].key):
            await poller.poll_all()
        received = fleet.engines()[0].received
        assert received is not None
        assert received.own_inflight == 1


@pytest.mark.parametrize(
    "newer",
    [
        {"fromTheFuture": 1},
        {"queues": {"bootstrap": 1, "fromTheFuture": 1}},
        {"kvFingerprint": FINGERPRINT | {"fromTheFuture": "1"}},
    ],
)
async def test_keys_of_a_newer_engine_are_ignored(newer: dict[str, object]) -> None:
    async with polled(web.json_response(GOOD | newer)) as (fleet, poller):
        await poller.poll_all()
        assert report_of(fleet) is not None


async def test_an_engine_that_cannot_be_connected_to_gets_no_requests_until_it_can() -> None:
    async with polled(web.json_response(GOOD)) as (fleet, poller):
        (good,) = (engine.endpoint for engine in fleet.engines())
        fleet.replace_endpoints([replace(good, url="http://127.0.0.1:1")])
        await poller.poll_all()
        assert condition(fleet.engines()[0], 0.0) == "failing"
        moved = fleet.engines()[0].key
        fleet.report(moved, load_report(), own_inflight=0)
        assert condition(fleet.engines()[0], 0.0) == "ready"


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500),
        web.Response(text="{"),
        web.Response(text=json.dumps({"role": "mixed"})),
        web.Response(body=b"\xff" * 100_000),
        None,
    ],
)
async def test_a_bad_or_missing_report_changes_nothing(answer: web.Response | None) -> None:
    async with polled(answer) as (fleet, poller):
        fleet.report(fleet.engines()[0].key, load_report(queued_requests=9), own_inflight=0)
        before = fleet.engines()
        await poller.poll_all()
        assert fleet.engines() == before
