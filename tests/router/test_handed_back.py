"""Real engines: what waits at one of them is answered by another as soon as that has room."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.router import fakes
from tests.router.private_engines import KEY
from tests.router.test_killed_engines import all_take_private_calls
from tests.runtime.launch import processes

pytestmark = pytest.mark.process

ROWS = 2
WAITING = 8
ENDLESS_TOKENS = 3900
"""Of an answer that takes longer than all that is asked beside it."""


def request(number: int, max_tokens: int = 8) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": f"Story {number}",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
    }


@dataclass
class Service:
    """Two engines of `ROWS` rows each, and a router."""

    client: aiohttp.ClientSession
    engines: list[processes.Process]
    urls: list[str]
    router: fakes.RunningRouter

    async def answer(self, number: int, url: str | None = None) -> str:
        url = (url or self.router.url) + "/v1/completions"
        async with self.client.post(url, json=request(number)) as response:
            body = await response.json()
            assert response.status == 200, body
            return str(body["choices"][0]["text"])

    async def occupy(self, url: str) -> list[asyncio.Task[None]]:
        """Answers that fill an engine, not asked through the router."""
        begun = [asyncio.Event() for _ in range(ROWS)]
        tasks = [
            asyncio.create_task(self._endless(url, number, event))
            for number, event in enumerate(begun)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        return tasks

    async def _endless(self, url: str, number: int, begun: asyncio.Event) -> None:
        body = request(number, ENDLESS_TOKENS) | {"stream": True}
        async with self.client.post(url + "/v1/completions", json=body) as response:
            async for _ in response.content:
                begun.set()

    async def queued(self, url: str) -> int:
        async with self.client.get(url + "/load") as response:
            return int((await response.json())["figures"]["queuedRequests"])

    async def until_all_wait(self) -> None:
        while True:
            if sum([await self.queued(url) for url in self.urls]) >= WAITING:
                return
            await asyncio.sleep(0.02)  # another process's reports

    async def moved(self) -> int:
        async with self.client.get(self.router.metrics_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        found = [line for line in lines if 'reason="handed_back"' in line]
        return int(float(found[0].split()[-1])) if found else 0

    async def ledger(self) -> dict[str, int]:
        async with self.client.get(self.router.metrics_url + "/ledger") as response:
            return dict(await response.json())


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        engines = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            key = folder / name / "key"
            key.write_bytes(KEY)
            config = processes.write_config(
                folder / name,
                contextLength=ENDLESS_TOKENS + 196,
                kvPoolTokens=4 * ENDLESS_TOKENS,
                maxRunningRequests=ROWS,
                dtype="float32",
                handoverKeyFile=str(key),
            )
            engines.append(stack.enter_context(processes.running(processes.program(config))))
        urls = [await asyncio.to_thread(engine.ready_url) for engine in engines]
        router = await stack.enter_async_context(
            fakes.running_router(*urls, handover_key_file=str(folder / "a" / "key"))
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await all_take_private_calls(client, router.metrics_url)
        yield Service(client, engines, urls, router)


async def test_what_waits_is_answered_by_the_engine_that_gets_room(tmp_path: Path) -> None:
    async with running(tmp_path) as service, asyncio.timeout(processes.HANG_SECONDS):
        expected = [await service.answer(n, service.urls[0]) for n in range(WAITING)]
        stays, leaves = [await service.occupy(url) for url in service.urls]
        answers = [asyncio.create_task(service.answer(n)) for n in range(WAITING)]
        await service.until_all_wait()
        for task in leaves:
            task.cancel()
        assert await asyncio.gather(*answers) == expected
        assert not any(task.done() for task in stays), "the other engine became free"
        assert await service.moved() > 0
        assert (await service.ledger())["answered"] == WAITING
        for task in stays:
            task.cancel()


async def test_what_waits_behind_an_engine_that_does_not_move_is_answered_elsewhere(
    tmp_path: Path,
) -> None:
    """Sooner than the engine counts as hung."""
    async with running(tmp_path) as service, asyncio.timeout(processes.HANG_SECONDS):
        expected = [await service.answer(n, service.urls[0]) for n in range(WAITING)]
        both = [await service.occupy(url) for url in service.urls]
        answers = [asyncio.create_task(service.answer(n)) for n in range(WAITING)]
        await service.until_all_wait()
        stopped = service.engines[0].child("sluice_runtime.engine")
        os.kill(stopped, signal.SIGSTOP)
        for task in both[1]:
            task.cancel()
        assert await asyncio.gather(*answers) == expected
        assert not any(task.done() for task in both[0]), "the engine was given up before"
        os.kill(stopped, signal.SIGCONT)
        for task in both[0]:
            task.cancel()
