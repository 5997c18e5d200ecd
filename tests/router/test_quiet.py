"""`GET /load?wait=…`: answered when a request comes, and not before."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import aiohttp
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x"}'


async def test_a_load_that_is_waited_for_comes_with_the_first_request() -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.answers_json))
        router = await stack.enter_async_context(fakes.running_router(engine.url))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        asked = asyncio.create_task(client.get(f"{router.metrics_url}/load?wait=600"))
        done, _ = await asyncio.wait([asked], timeout=0.2)
        assert not done
        async with client.post(f"{router.url}/v1/completions", data=BODY) as answer:
            assert answer.status == 200
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await asked).status == 200


async def test_without_a_request_it_comes_in_the_end_and_a_router_that_leaves_answers_at_once() -> (
    None
):
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(fakes.running_router("http://127.0.0.1:9"))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        started = time.monotonic()
        async with client.get(f"{router.metrics_url}/load?wait=0.05") as answer:
            assert answer.status == 200
        assert time.monotonic() - started >= 0.05
        asked = asyncio.create_task(client.get(f"{router.metrics_url}/load?wait=600"))
        await asyncio.wait([asked], timeout=0.5)
        router.stop.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await (await asked).json())["draining"]


@pytest.mark.parametrize("wait", ["-1", "601", "nan", "x"])
async def test_a_wait_that_is_not_allowed_is_refused(wait: str) -> None:
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        aiohttp.ClientSession() as client,
        client.get(f"{router.metrics_url}/load?wait={wait}") as answer,
    ):
        assert answer.status == 400
        assert "0 to 600" in await answer.text()
