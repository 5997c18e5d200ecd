"""`/v1/responses` through a router and two API processes' servers: one that fails costs nothing."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import httpx
import openai
import pytest
from sluice_runtime.errors import UnavailableError
from sluice_runtime.wire.transport import private_endpoint

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.private_engines import KEY
from tests.runtime.server.conftest import MODEL, running_server


async def resumed(http: httpx.AsyncClient, url: str) -> int:
    text = (await http.get(url + "/metrics")).text
    found = re.findall(r"^sluice_router_streams_resumed_total\{.*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, found))


async def until_private_calls(http: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            rows = (await http.get(url + "/load")).json()["engines"]
            if all((row.get("report") or {}).get("privateCalls") for row in rows):
                return
            await asyncio.sleep(0.01)  # for the router's next look at them


@pytest.mark.process
async def test_a_stream_of_a_response_goes_on_with_another_engine(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(endpoint, key=KEY))
            for endpoint in [stack.enter_context(private_endpoint()) for _ in range(2)]
        ]
        urls = [server.url for server in servers]
        router = await stack.enter_async_context(
            fakes.running_router(*urls, handover_key_file=str(key))
        )
        http = await stack.enter_async_context(httpx.AsyncClient())
        await until_private_calls(http, router.metrics_url)
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        )
        words = "once upon a time " * 8
        expected = await client.responses.create(model=MODEL, input=words)
        for server in servers:
            server.engine.step_seconds = 0.1  # the answer is far from its end when it breaks off
        stream = await client.responses.create(model=MODEL, input=words, stream=True)
        events = [await anext(stream)]
        for server in servers:
            server.service.client.end_streams(UnavailableError("the engine leaves"))
            server.engine.step_seconds = 0.0
        events += [event async for event in stream]
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == expected.output_text
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == expected.output_text
        numbers = [event.sequence_number for event in events]
        assert all(before < behind for before, behind in pairwise(numbers))
        assert last.response.usage == expected.usage
        assert await resumed(http, router.metrics_url) == 1
