"""A request that kills real engines: two of them, and no third."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.runtime.launch import processes

pytestmark = pytest.mark.process

POISON = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "ignore_eos": True}


def engine(stack: AsyncExitStack, folder: Path) -> processes.Process:
    """A whole engine with random weights, while it starts."""
    folder.mkdir()
    config = processes.write_config(folder, contextLength=4096, kvPoolTokens=8192)
    return stack.enter_context(processes.running(processes.program(config)))


async def kill_when_it_runs(process: processes.Process) -> None:
    """SIGKILL to the engine process, once it has begun with the request."""
    await asyncio.to_thread(process.wait_for, r"Prefill batch")
    os.kill(process.child("sluice_runtime.engine"), signal.SIGKILL)


async def test_a_request_that_kills_two_engines_is_offered_to_no_third(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        starting = [engine(stack, tmp_path / name) for name in ("a", "b")]
        engines = [await asyncio.to_thread(one.ready_url) for one in starting]
        third = await stack.enter_async_context(fakes.running_engine(fakes.streams))
        third.load = fakes.load_report(queued_requests=1000, queued_work_seconds=1000.0)
        router = await stack.enter_async_context(fakes.running_router(*engines, third.url))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.wait_for(third.polled.wait(), PATIENCE_SECONDS)
        asked = asyncio.create_task(answer(client, router.url))
        async with asyncio.timeout(60):
            await asyncio.gather(*map(kill_when_it_runs, starting))
            status, code = await asked
        assert (status, code) == (503, "engine_died")
        assert not third.calls
        async with client.post(router.url + "/v1/completions", json={"model": "tiny"}) as other:
            assert (await other.read()).endswith(fakes.DONE)  # the third serves what is no poison


async def answer(client: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    async with client.post(url + "/v1/completions", json=POISON) as response:
        return response.status, (await response.json())["error"]["code"]
