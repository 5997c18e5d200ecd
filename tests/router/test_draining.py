"""SIGTERM: streams finish, latecomers are served or refused, the process leaves in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'


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
    client: aiohttp.ClientSession,
) -> None:
    server = {"drain_seconds": 30, "lame_duck_seconds": 1}
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url, server=server) as router,
    ):
        router.stop.set()
        await ready_is(client, router.url, "Draining")
        async with client.post(router.url + "/v1/completions", data=BODY) as late:
            assert late.headers["Connection"] == "close"
            assert (await late.read()).endswith(fakes.DONE)
        await asyncio.wait_for(router.task, 5)


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


async def ready_is(client: aiohttp.ClientSession, url: str, reason: str) -> None:
    async with asyncio.timeout(5):
        while True:
            async with client.get(url + "/ready") as response:
                body = await response.json()
                if body["reason"] == reason:
                    assert response.status == (200 if reason == "Ready" else 503)
                    return
