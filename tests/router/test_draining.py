"""SIGTERM: streams finish, later requests are answered, the process leaves in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import raw_connection

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
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
        await ready_is(client, router.metrics_url, "Draining")
        assert not router.task.done()
        engine.gate.set()
        assert (await response.read()).endswith(fakes.DONE)
        await asyncio.wait_for(router.task, PATIENCE_SECONDS)


async def test_requests_are_answered_for_as_long_as_the_router_lives(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"drain_seconds": 30}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as running,
    ):
        assert await running.content.readany()
        router.stop.set()
        await ready_is(client, router.metrics_url, "Draining")
        async with client.post(router.url + "/v1/completions", data=BODY) as late:
            assert late.status == 200
            assert late.headers["Connection"] == "close"
            engine.gate.set()
            assert (await late.read()).endswith(fakes.DONE)
        await running.read()
        await asyncio.wait_for(router.task, PATIENCE_SECONDS)


@pytest.mark.parametrize("drain_seconds", [30, 0])
async def test_latecomers_are_served_while_the_cluster_catches_up(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, drain_seconds: float
) -> None:
    caught_up = asyncio.Event()

    async def sleep(seconds: float) -> None:
        assert seconds == LAME_DUCK_SECONDS
        await caught_up.wait()

    monkeypatch.setattr("sluice_router.lifecycle.sleep", sleep)
    server = {"drain_seconds": drain_seconds, "lame_duck_seconds": LAME_DUCK_SECONDS}
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url, server=server) as router,
    ):
        router.stop.set()
        await ready_is(client, router.metrics_url, "Draining")
        async with client.post(router.url + "/v1/completions", data=BODY) as late:
            assert late.headers["Connection"] == "close"
            assert (await late.read()).endswith(fakes.DONE)
        assert not router.task.done()
        caught_up.set()
        await asyncio.wait_for(router.task, PATIENCE_SECONDS)


async def first_waits_then_streams(
    engine: fakes.FakeEngine, request: web.Request
) -> web.StreamResponse:
    """The first call streams when the gate is open; the others at once."""
    if len(engine.calls) == 1:
        return await fakes.streams_when_let(engine, request)
    return await fakes.streams(engine, request)


async def test_a_request_behind_a_stream_that_began_before_the_stop_is_answered(
    client: aiohttp.ClientSession,
) -> None:
    """The stream's head promised to keep the connection."""
    server = {"drain_seconds": 30, "lame_duck_seconds": 1.0}
    async with (
        fakes.running_engine(first_waits_then_streams) as engine,
        fakes.running_router(engine.url, server=server) as router,
        raw_connection(router.url) as kept,
    ):
        first = asyncio.create_task(kept.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        router.stop.set()
        await ready_is(client, router.metrics_url, "Draining")
        engine.gate.set()
        assert not (await first).closes
        second = await kept.ask()
        assert second.closes
        assert second.body.endswith(fakes.DONE)
        assert await asyncio.wait_for(kept.reader.read(), PATIENCE_SECONDS) == b""
        await asyncio.wait_for(router.task, PATIENCE_SECONDS)


async def test_quiet_connections_are_closed_beside_a_stream(
    client: aiohttp.ClientSession,
) -> None:
    server = {"drain_seconds": 30, "lame_duck_seconds": 0.1}
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server=server) as router,
        client.post(router.url + "/v1/completions", data=BODY) as running,
        raw_connection(router.url) as fresh,
        raw_connection(router.url) as used,
    ):
        assert await running.content.readany()
        used.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not (await used.answer()).closes
        router.stop.set()
        for quiet in (fresh, used):
            assert await asyncio.wait_for(quiet.reader.read(), PATIENCE_SECONDS) == b""
        assert not router.task.done()
        engine.gate.set()
        assert (await running.read()).endswith(fakes.DONE)


async def connects_again_and_again(url: str) -> None:
    """Without a request, until nobody accepts."""
    where, writers = urlsplit(url), []
    with suppress(OSError):
        while True:
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            writers.append(writer)
            await asyncio.sleep(0.1)
    for writer in writers:
        writer.close()


async def test_new_connections_on_which_nothing_comes_hold_up_no_drain() -> None:
    server = {"drain_seconds": 600, "lame_duck_seconds": 0.5}
    async with fakes.running_router("http://127.0.0.1:9", server=server) as router:
        connecting = asyncio.create_task(connects_again_and_again(router.url))
        await asyncio.sleep(0.3)
        router.stop.set()
        await asyncio.wait_for(asyncio.shield(router.task), PATIENCE_SECONDS)
        await connecting


async def test_beside_a_stream_a_new_connection_is_accepted_and_closed_if_it_stays_silent(
    client: aiohttp.ClientSession,
) -> None:
    server = {"drain_seconds": 600, "lame_duck_seconds": 1.0}
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server=server) as router,
        client.post(router.url + "/v1/completions", data=BODY) as running,
    ):
        assert await running.content.readany()
        router.stop.set()
        await asyncio.sleep(1.2)
        loop = asyncio.get_running_loop()
        async with raw_connection(router.url) as silent, raw_connection(router.url) as asking:
            start = loop.time()
            asking.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await asking.answer()).closes
            assert await asyncio.wait_for(silent.reader.read(), PATIENCE_SECONDS) == b""
            assert loop.time() - start < 0.9
        engine.gate.set()
        assert (await running.read()).endswith(fakes.DONE)
        await asyncio.wait_for(router.task, PATIENCE_SECONDS)
        with pytest.raises(OSError, match="Connect"):
            async with raw_connection(router.url):
                pass


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
        await asyncio.wait_for(router.task, PATIENCE_SECONDS)
        await asyncio.wait_for(engine.aborted.wait(), PATIENCE_SECONDS)


async def ready_is(client: aiohttp.ClientSession, url: str, reason: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with client.get(url + "/ready") as response:
                body = await response.json()
                if body["reason"] == reason:
                    assert response.status == (200 if reason == "Ready" else 503)
                    return
