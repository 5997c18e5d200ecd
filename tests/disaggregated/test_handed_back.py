"""Two pools: what waits for pages at one decode engine is answered by another that has some."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.disaggregated.asking import Request, task, text
from tests.disaggregated.service import Service, running_service
from tests.runtime.launch.processes import HANG_SECONDS, get

pytestmark = pytest.mark.process

ROWS = 2
WAITING = 6
ENDLESS_TOKENS = 1900


def test_what_waits_for_pages_is_answered_by_the_engine_that_has_some(tmp_path: Path) -> None:
    decode = {"maxRunningRequests": ROWS}
    with running_service(tmp_path, prefills=1, decodes=2, decode=decode) as service:
        service.known()
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
        answers = [asyncio.create_task(_ask(client, service, request)) for request in asked]
        await _until(service, "queued_requests", WAITING // 2)
        leaves = service.decodes[0]
        rows = get(service.router.metrics_url, "/picks").json()["picks"]
        there = [
            row["requestId"] for row in rows if leaves.url in row["message"].split("decode")[1]
        ]
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


async def _until(service: Service, field: str, least: int) -> None:
    """Returns when each decode engine has so many."""
    while True:
        loads = [await asyncio.to_thread(engine.load) for engine in service.decodes]
        if all(getattr(load, field) >= least for load in loads):
            return
        await asyncio.sleep(0.02)  # another process's reports


async def _read(client: aiohttp.ClientSession, service: Service, seed: int) -> None:
    request = text(32, seed, ENDLESS_TOKENS, stream=True)
    headers = {"X-Request-Id": f"endless-{seed}"}
    url = service.url + request.path
    async with client.post(url, json=request.body, headers=headers, ssl=False) as response:
        async for _ in response.content:
            pass


async def _ask(client: aiohttp.ClientSession, service: Service, request: Request) -> Any:
    async with client.post(service.url + request.path, json=request.body, ssl=False) as response:
        body = await response.json()
        assert response.status == 200, body
        return body["choices"][0]["text"]
