"""A service without requests is left alone until one comes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import CanaryCounts
from sluice_operator.autoscale.query import RouterQuery, query_session
from sluice_operator.autoscale.tick import QUIET_SECONDS

from tests.operator.autoscale.world import KEY, World, load, row, scaled_service
from tests.operator.harness.fake_router import fake_router
from tests.patience import PATIENCE_SECONDS

BUSY = {"queued_work_seconds": 5.0, "queued_requests": 9, "queued_tokens": 9000}


async def test_nobody_looks_at_a_quiet_service_until_a_request_comes() -> None:
    world = World(scaled_service(least=1), (load(row("a")),))
    await world.tick(times=4)
    assert (world.slept, len(world.noted)) == (3, 4)
    assert world.clock.elapsed_seconds >= 3 * QUIET_SECONDS

    async def a_request_comes() -> None:
        world.loads = (load(row("a", **BUSY)),)

    world.on_quiet = a_request_comes
    await world.tick()
    assert len(world.writes) == 1
    await world.tick(times=3)
    assert world.slept == 4


@pytest.mark.parametrize(
    "busy",
    [
        (load(row("a", running_requests=1)),),
        (load(row("a"), waiting=1),),
        (load(row("a", queued_requests=1)),),
        (),
    ],
)
async def test_one_with_requests_or_without_reports_is_looked_at(busy: tuple[object, ...]) -> None:
    world = World(scaled_service(least=1), busy)  # type: ignore[arg-type]
    await world.tick(times=3)
    assert world.slept == 0


async def test_one_that_may_still_shrink_is_looked_at() -> None:
    world = World(scaled_service(replicas=3, least=1), (load(row("a")),))
    await world.tick(times=3)
    assert world.slept == 0


async def test_pods_that_come_or_go_are_awaited() -> None:
    world = World(scaled_service(least=1), (load(row("a")),))
    world.pods(Role.MIXED, 1, draining=1)
    await world.tick(times=3)
    assert world.slept == 0


async def test_another_spec_ends_quiet() -> None:
    world = World(scaled_service(least=1), (load(row("a")),))
    await world.tick()

    async def for_ever() -> None:
        world.scaling_tick.memories[KEY].wake.set()
        await asyncio.Event().wait()

    world.on_quiet = for_ever
    assert await world.tick() == 0.0
    await world.tick()
    assert (world.slept, len(world.noted)) == (1, 2)


async def test_the_first_of_several_routers_that_is_asked_something_ends_the_wait() -> None:
    async with fake_router() as quiet, fake_router() as busy, query_session() as session:
        quiet.load = busy.load = load()
        query = RouterQuery(session)
        waiting = asyncio.create_task(query.quiet((quiet.address, busy.address), 60))
        await asyncio.gather(quiet.until_waiting(), busy.until_waiting())
        assert not waiting.done()
        busy.load = load(waiting=1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waiting


@pytest.mark.parametrize(("status", "counts"), [(200, True), (204, False), (302, False)])
async def test_only_an_answer_with_status_200_is_load(status: int, *, counts: bool) -> None:
    async with fake_router() as router, query_session() as session:
        router.load, router.status = load(waiting=1), status
        assert bool(await RouterQuery(session)((router.address,))) == counts


async def test_a_router_whose_counts_of_a_canary_are_unreadable_reports_its_load() -> None:
    async with fake_router() as router, query_session() as session:
        unreadable: dict[str, Any] = {"epoch": "r1"}
        counts = CanaryCounts.model_construct(**unreadable)
        router.load = load(waiting=1).model_copy(update={"canary": counts})
        (answer,) = await RouterQuery(session)((router.address,))
    assert (answer.waiting_requests, answer.canary) == (1, None)


async def test_an_answer_that_is_too_large_is_an_error_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sluice_operator.autoscale.query.MAX_BYTES", 9)
    async with fake_router() as router, query_session() as session:
        router.load = load()
        assert await RouterQuery(session)((router.address,)) == ()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "load too large"
    ]


async def test_a_router_that_refuses_ends_no_wait() -> None:
    async with fake_router() as router, aiohttp.ClientSession() as session:
        query = RouterQuery(session)
        waiting = asyncio.create_task(query.quiet((router.address,), 60))
        await router.until_asked()
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_a_router_that_starts_again_in_place_is_asked_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice_operator.autoscale.query.AGAIN_SECONDS", 0.01)
    async with fake_router() as router, query_session() as session:
        waiting = asyncio.create_task(RouterQuery(session).quiet((router.address,), 60))
        await router.until_asked()
        router.load = load()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await router.until_waiting()
            assert not waiting.done()
            router.load = load(waiting=1)
            await waiting
