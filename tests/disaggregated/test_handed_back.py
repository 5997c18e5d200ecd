"""What waits at one engine of a service is answered by another that has room, though an engine or a
router is killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.disaggregated.asking import Request, task, text
from tests.disaggregated.engines import EngineProcess, RouterProcess
from tests.disaggregated.service import Service, running_service
from tests.runtime.launch.processes import HANG_SECONDS, get, until

pytestmark = pytest.mark.process

ROWS = 2
WAITING = 6
ENDLESS_TOKENS = 1900
MOVING = 18
LOOK_SECONDS = 0.2


@pytest.fixture(scope="module", params=[0, 1], ids=["one pool", "two pools"])
def pools(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    rows = {"maxRunningRequests": ROWS}
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, request.param, 2, decode=rows, mixed=rows) as service:
        yield service


@pytest.fixture
def service(pools: Service, tmp_path: Path) -> Iterator[Service]:
    """With a router of its own, which has counted nothing; nothing is held when a test ends."""
    pools.mend()
    with ExitStack() as stack:
        service = replace(pools, router=router_of(pools, tmp_path, stack))
        service.known()
        yield service
        service.idle(*service.ended())


def router_of(pools: Service, folder: Path, stack: ExitStack) -> RouterProcess:
    settings = {"load": {"intervalSeconds": LOOK_SECONDS}}
    router = RouterProcess(folder, pools.prefills, pools.decodes, **settings)
    router.start()
    stack.callback(router.stop)
    return router


def test_what_waits_for_pages_is_answered_by_the_engine_that_has_some(service: Service) -> None:
    asyncio.run(_answered_elsewhere(service))
    service.idle()
    ledger = service.router.ledger()
    assert (ledger.answered, ledger.lost, ledger.open) == (WAITING, 0, 0)


async def _answered_elsewhere(service: Service) -> None:
    async with aiohttp.ClientSession() as client, asyncio.timeout(HANG_SECONDS):
        endless = {
            f"endless-{seed}": asyncio.create_task(_read(client, service, seed))
            for seed in range(2 * ROWS)
        }
        await _until(service, "running_requests", ROWS)
        asked = [task("copy", 40, seed) for seed in range(WAITING)]
        answers = [asyncio.create_task(_ask(client, service.url, request)) for request in asked]
        await _until(service, "queued_requests", WAITING // 2)
        there = _picked(service, service.decodes[0])
        for name, reading in endless.items():
            if name in there:
                reading.cancel()
        assert await asyncio.gather(*answers) == [request.answer for request in asked]
        stay = [reading for name, reading in endless.items() if name not in there]
        assert len(stay) == ROWS
        assert not any(reading.done() for reading in stay), "the other engine became free"
        for reading in stay:
            reading.cancel()
        metrics = get(service.router.metrics_url, "/metrics").text
        assert 'sluice_router_retries_total{reason="handed_back"}' in metrics


@pytest.mark.parametrize("killed", ["router", "engine"])
def test_each_request_is_answered_once_though_one_is_killed_while_they_move(
    service: Service, tmp_path: Path, killed: str
) -> None:
    """Three routers ask one engine for what waits there, until it is killed, or one of them."""
    with ExitStack() as stack:
        routers = [service.router]
        for number in range(2):
            (folder := tmp_path / f"router-{number}").mkdir()
            routers.append(router_of(service, folder, stack))
        before = service.decodes[0].load().figures.finished_requests_total or 0
        answered = asyncio.run(_answered_though_killed(service, routers, killed))
        if killed == "router":
            del routers[1]
        for router in routers:
            ledger = router.ledger()
            assert (ledger.lost, ledger.refused, ledger.open) == (0, 0, 0)
            assert ledger.answered + ledger.resumed == answered.count(router)
        left = service.decodes[0].load().figures.finished_requests_total
        if killed == "engine":
            assert left == before + MOVING, "an answer was computed twice"


async def _answered_though_killed(
    service: Service, routers: list[RouterProcess], killed: str
) -> list[RouterProcess]:
    """Which router answered each request."""
    leaves, stays = service.decodes
    async with aiohttp.ClientSession() as client, asyncio.timeout(HANG_SECONDS):
        endless = {
            f"endless-{seed}": asyncio.create_task(_read(client, service, seed))
            for seed in range(2 * ROWS)
        }
        await _until(service, "running_requests", ROWS)
        asked = [task("copy", 40, seed) for seed in range(MOVING)]
        answers = [
            asyncio.create_task(_ask_again(client, routers[number % 3 :], request))
            for number, request in enumerate(asked)
        ]
        await _until(service, "queued_requests", MOVING // 3)
        for name in _picked(service, leaves):
            if name in endless:
                endless[name].cancel()
        await asyncio.to_thread(until, lambda: any(map(_moved, routers)))
        assert stays.load().figures.queued_requests, "all have moved before one is killed"
        (stays if killed == "engine" else routers[1]).stop()
        for reading in endless.values():
            reading.cancel()
        found = await asyncio.gather(*answers)
        assert [answer for answer, _ in found] == [request.answer for request in asked]
        await asyncio.gather(*endless.values(), return_exceptions=True)
        return [router for _, router in found]


def _picked(service: Service, engine: EngineProcess) -> list[str]:
    """Requests that the first router has sent to this engine, which answers them."""
    rows = get(service.router.metrics_url, "/picks").json()["picks"]
    message = {row["requestId"]: row["message"].rpartition("decode ")[2] for row in rows}
    return [name for name, chosen in message.items() if chosen.startswith(engine.url)]


def _moved(router: RouterProcess) -> float:
    return router.metric('sluice_router_retries_total{reason="handed_back"}')


async def _until(service: Service, field: str, least: int) -> None:
    """Returns when each decode engine has so many."""
    while True:
        loads = [await asyncio.to_thread(engine.load) for engine in service.decodes]
        if all(getattr(load.figures, field) >= least for load in loads):
            return
        await asyncio.sleep(0.02)  # another process's reports


async def _read(client: aiohttp.ClientSession, service: Service, seed: int) -> None:
    request = text(32, seed, ENDLESS_TOKENS, stream=True)
    headers = {"X-Request-Id": f"endless-{seed}"}
    url = service.url + request.path
    async with client.post(url, json=request.body, headers=headers, ssl=False) as response:
        async for _ in response.content:
            pass


async def _ask(client: aiohttp.ClientSession, url: str, request: Request) -> Any:
    async with client.post(url + request.path, json=request.body, ssl=False) as response:
        body = await response.json()
        assert response.status == 200, body
        return body["choices"][0]["text"]


async def _ask_again(
    client: aiohttp.ClientSession, routers: list[RouterProcess], request: Request
) -> tuple[Any, RouterProcess]:
    """The answer, of the next router where one is gone; and which it was."""
    for router in routers[:-1]:
        try:
            return await _ask(client, router.url, request), router
        except aiohttp.ClientError:
            continue
    return await _ask(client, routers[-1].url, request), routers[-1]
