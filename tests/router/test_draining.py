"""SIGTERM: streams finish, latecomers are served or refused, the process leaves in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
REQUEST = HEAD + BODY
LAME_DUCK_SECONDS = 7.5


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_a_stream_outlives_the_stop_and_the_router_leaves_after_it(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"drain_seconds": 30}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert await response.content.readany()
        router.stop.set()
        await ready_is(client, router.url, "Draining")
        assert not router.task.done()
        engine.gate.set()
        assert (await response.read()).endswith(fakes.DONE)
        await asyncio.wait_for(router.task, 5)


async def test_new_requests_are_refused_while_draining(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"drain_seconds": 30}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as running,
    ):
        assert await running.content.readany()
        router.stop.set()
        await ready_is(client, router.url, "Draining")
        async with client.post(router.url + "/v1/completions", data=BODY) as late:
            assert late.status == 503
            assert late.headers["Connection"] == "close"
            assert late.headers["Retry-After"] == "1"
            assert (await late.json())["error"]["code"] == "router_draining"
        engine.gate.set()
        await running.read()


async def test_latecomers_are_served_while_the_cluster_catches_up(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught_up = asyncio.Event()

    async def sleep(seconds: float) -> None:
        assert seconds == LAME_DUCK_SECONDS
        await caught_up.wait()

    monkeypatch.setattr("sluice_router.lifecycle.sleep", sleep)
    server = {"drain_seconds": 30, "lame_duck_seconds": LAME_DUCK_SECONDS}
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url, server=server) as router,
    ):
        router.stop.set()
        await ready_is(client, router.url, "Draining")
        async with client.post(router.url + "/v1/completions", data=BODY) as late:
            assert late.headers["Connection"] == "close"
            assert (await late.read()).endswith(fakes.DONE)
        assert not router.task.done()
        caught_up.set()
        await asyncio.wait_for(router.task, 5)


async def first_streams_then_hangs(
    engine: fakes.FakeEngine, request: web.Request
) -> web.StreamResponse:
    """The first call streams when the gate is open; the second stays."""
    if len(engine.calls) == 1:
        return await fakes.streams_when_let(engine, request)
    return await fakes.hangs_in_stream(engine, request)


async def test_a_stream_that_began_before_the_stop_ends_its_connection_too(
    client: aiohttp.ClientSession,
) -> None:
    """Its head promised to keep the connection; another stream keeps the router."""
    async with (
        fakes.running_engine(first_streams_then_hangs) as engine,
        fakes.running_router(engine.url, server={"drain_seconds": 30}) as router,
        keep_alive_connection(router.url) as (reader, writer),
    ):
        writer.write(REQUEST)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"connection: close" not in head.lower()
        async with client.post(router.url + "/v1/completions", data=BODY) as other:
            assert await other.content.readany()
            router.stop.set()
            await ready_is(client, router.url, "Draining")
            engine.gate.set()
            rest = await asyncio.wait_for(reader.read(), 10)  # returns when the router closes
            assert fakes.DONE in rest
            assert not router.task.done()
            writer.write(REQUEST)  # nobody reads it
            assert not other.content.at_eof()
        assert len(engine.calls) == 2


async def test_streams_are_ended_with_an_error_when_the_drain_time_is_over(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"drain_seconds": 0.1}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert await response.content.readany()
        router.stop.set()
        rest = await response.read()
        assert b'"code":"router_draining"' in rest
        assert fakes.DONE not in rest
        await asyncio.wait_for(router.task, 5)
        await asyncio.wait_for(engine.aborted.wait(), 5)


@asynccontextmanager
async def keep_alive_connection(
    url: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ready_is(client: aiohttp.ClientSession, url: str, reason: str) -> None:
    async with asyncio.timeout(5):
        while True:
            async with client.get(url + "/ready") as response:
                body = await response.json()
                if body["reason"] == reason:
                    assert response.status == (200 if reason == "Ready" else 503)
                    return
