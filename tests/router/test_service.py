"""Router, API server and engines together: pools that change under streaming load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.config.router import (
    Discovery,
    LoadFollowing,
    RouterConfig,
    RouterServer,
    Upstream,
)
from sluice_router.kube import Cluster, Credentials

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.fake_kube import FakeKube, Slice, endpoint_slice, running_kube

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
TERMINATING = {"ready": False, "serving": True, "terminating": True}


def slice_of(name: str, engine: fakes.FakeEngine, **conditions: bool) -> Slice:
    port = int(engine.url.rpartition(":")[2])
    piece = endpoint_slice(name, (name, conditions), port=port)
    piece["endpoints"][0]["addresses"] = ["127.0.0.1"]
    return piece


@asynccontextmanager
async def service(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, interval_seconds: float = 0.05
) -> AsyncIterator[fakes.RunningRouter]:
    """A router that finds its engines through the API server."""
    cluster = Cluster(kube.url, lambda: Credentials({}))
    monkeypatch.setattr("sluice_router.serve.in_cluster", lambda environ: cluster)
    config = RouterConfig(
        discovery=Discovery(service="chat"),
        server=RouterServer(port=0, metrics_port=0, lame_duck_seconds=0, drain_seconds=5),
        upstream=Upstream(wait_for_engine_seconds=5),
        load=LoadFollowing(interval_seconds=interval_seconds),
    )
    async with fakes.running_from(config, {"POD_NAMESPACE": "ns"}) as router:
        yield router


async def stream(client: aiohttp.ClientSession, url: str) -> bytes:
    async with client.post(url + "/v1/completions", data=BODY) as response:
        return await response.read()


async def test_a_router_is_ready_with_no_engines_but_not_before_it_has_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_kube() as kube, aiohttp.ClientSession() as client:
        kube.refuse = 503
        async with service(kube, monkeypatch) as router:
            async with client.get(router.metrics_url + "/ready") as response:
                assert response.status == 503
                assert (await response.json())["reason"] == "NotDiscovered"
            kube.refuse = None
            await asyncio.wait_for(kube.watched_from.get(), PATIENCE_SECONDS)
            async with client.get(router.metrics_url + "/ready") as response:
                assert await response.json() == {"ready": True, "engines": 0, "reason": "Ready"}


async def test_engines_are_asked_for_their_load_as_soon_as_they_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_kube() as kube, fakes.running_engine(fakes.streams) as engine:
        kube.slices["s1"] = slice_of("a", engine, ready=True)
        async with service(kube, monkeypatch, interval_seconds=60):
            await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS / 2)


async def test_scale_in_and_the_api_servers_end_lose_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running_kube() as kube,
        aiohttp.ClientSession() as client,
        fakes.running_engine(fakes.streams_when_let) as leaving,
        fakes.running_engine(fakes.streams) as staying,
        service(kube, monkeypatch) as router,
    ):
        kube.put(slice_of("leaving", leaving, ready=True), "ADDED")
        running = asyncio.create_task(stream(client, router.url))  # waits for the engine to appear
        await asyncio.wait_for(leaving.asked.wait(), PATIENCE_SECONDS)
        kube.put(slice_of("leaving", leaving, **TERMINATING))
        kube.put(slice_of("staying", staying, ready=True), "ADDED")
        for _ in range(3):
            assert (await stream(client, router.url)).endswith(fakes.DONE)
        assert (len(leaving.calls), len(staying.calls)) == (1, 3)
        kube.delete("leaving")
        kube.refuse = 503
        kube.end_watches()
        assert (await stream(client, router.url)).endswith(fakes.DONE)
        leaving.gate.set()
        assert (await asyncio.wait_for(running, PATIENCE_SECONDS)).endswith(fakes.DONE)


async def paced(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """Ten events over some time, as a model would."""
    response = await fakes.start_stream(request)
    for number in range(10):
        await response.write(fakes.EVENT % number)
        await asyncio.sleep(0.005)
    await response.write(fakes.DONE)
    return response


async def test_a_rolling_update_under_load_fails_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every engine is replaced; each is gone before the API server says that it leaves."""
    async with (
        running_kube() as kube,
        aiohttp.ClientSession() as client,
        service(kube, monkeypatch) as router,
        AsyncExitStack() as stack,
    ):
        old = [AsyncExitStack(), AsyncExitStack()]
        for number, engine_stack in enumerate(old):
            await start_engine(kube, engine_stack, f"old-{number}")
        stop = asyncio.Event()
        clients = [asyncio.create_task(keep_streaming(client, router.url, stop)) for _ in range(20)]
        for number, engine_stack in enumerate(old):
            fresh = await start_engine(kube, stack, f"new-{number}")
            await asyncio.wait_for(fresh.asked.wait(), PATIENCE_SECONDS)
            await engine_stack.aclose()
            kube.delete(f"old-{number}")
        stop.set()
        answers = [answer for answers in await asyncio.gather(*clients) for answer in answers]
    assert len(answers) > 40
    assert all(answer.count(b'"text"') == 10 for answer in answers)
    assert all(answer.endswith(fakes.DONE) for answer in answers)


async def start_engine(kube: FakeKube, stack: AsyncExitStack, name: str) -> fakes.FakeEngine:
    engine = await stack.enter_async_context(fakes.running_engine(paced, drain_seconds=5))
    kube.put(slice_of(name, engine, ready=True), "ADDED")
    return engine


async def keep_streaming(
    client: aiohttp.ClientSession, url: str, stop: asyncio.Event
) -> list[bytes]:
    answers = []
    while not stop.is_set():
        answers.append(await stream(client, url))
    return answers
