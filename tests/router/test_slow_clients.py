"""Clients that do not read: they are given up, and no engine is blamed for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from sluice_router import gate, relay

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
BIG_EVENT = b'data: {"text":"' + b"x" * 1_000_000 + b'"}\n\n'
LOOKS, LOOK_SECONDS = 5, 0.1
"""A write that is not done at the last look is blocked. A process that stands still misses one."""


async def fills_every_buffer(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """Writes until nobody takes more, says so, and breaks the connection once the gate is open."""
    response = await fakes.start_stream(request)
    while await is_taken(response.write(BIG_EVENT)):
        pass
    engine.blocked.set()
    await engine.gate.wait()
    fakes.break_connection(request)
    return response


async def is_taken(writing: Coroutine[None, None, None]) -> bool:
    """Whether somebody reads what is written."""
    task = asyncio.create_task(writing)
    try:
        for _ in range(LOOKS):
            done, _ = await asyncio.wait([task], timeout=LOOK_SECONDS)
            if done:
                await task
                return True
    finally:
        task.cancel()
    return False


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has asked and reads nothing by itself."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1024)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    writer.write(head + BODY)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def test_a_client_that_takes_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gate, "WRITE_SECONDS", 0.2)
    async with (
        fakes.running_engine(fills_every_buffer) as engine,
        fakes.running_router(engine.url) as router,
        asking(router.url),
        aiohttp.ClientSession() as session,
    ):
        await asyncio.wait_for(engine.aborted.wait(), PATIENCE_SECONDS)
        async with session.get(router.metrics_url + "/load") as response:
            row = (await response.json())["engines"][0]
        assert (row["condition"], row["inflightRequests"]) == ("ready", 0)
        async with session.get(router.metrics_url + "/metrics") as response:
            assert (
                'total{code="499",outcome="client_gone",route="/v1/completions"} 1.0'
                in await response.text()
            )
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("held_up_seconds", "condition", "code"),
    [(0.1, "ready", b"client_too_slow"), (600.0, "failing", b"engine_failed")],
)
async def test_an_engine_is_not_blamed_for_a_client_that_held_it_up(
    held_up_seconds: float, condition: str, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "HELD_UP_SECONDS", held_up_seconds)
    monkeypatch.setattr("sluice_router.engines.break_seconds", lambda failures: 60.0)
    async with (
        fakes.running_engine(fills_every_buffer) as engine,
        fakes.running_router(engine.url) as router,
        asking(router.url) as reader,
        aiohttp.ClientSession() as session,
    ):
        await asyncio.wait_for(engine.blocked.wait(), PATIENCE_SECONDS)
        engine.gate.set()
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            chunk = await asyncio.wait_for(reader.read(1 << 20), PATIENCE_SECONDS)
            assert chunk, "cut off without an error event"
            answer = (answer + chunk)[-4096:]
        assert code in answer
        async with session.get(router.metrics_url + "/load") as response:
            assert (await response.json())["engines"][0]["condition"] == condition
