"""Engines that fail, refuse or vanish, clients that leave: what the other side sees."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
NOBODY = "http://127.0.0.1:1"
"""An address where nothing listens."""


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def error_event(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    response = await fakes.start_stream(request)
    await response.write(b'data: {"error":{"message":"engine process died"}}\n\n')
    return response


async def dies_mid_body(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"half":')
    await engine.gate.wait()
    fakes.break_connection(request)
    return response


async def ends_without_done(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    response = await fakes.start_stream(request)
    await response.write(fakes.EVENT % 0)
    return response


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        (fakes.dies_before_answer, "broken"),
        (fakes.refuses(503), "unavailable"),
        (fakes.refuses(502), "broken"),
        (fakes.refuses(503, code="engine_died"), "broken"),
        (fakes.refuses(503, code="grammar_unavailable"), "uncompiled"),
        (fakes.refuses(503, code="out_of_memory"), "out_of_memory"),
        (fakes.refuses(429), "queue_full"),
        (error_event, "broken"),
    ],
)
async def test_a_failure_before_the_first_byte_is_retried_elsewhere(
    client: aiohttp.ClientSession, behave: fakes.Behaviour, reason: str
) -> None:
    async with (
        fakes.running_engine(behave) as bad,
        fakes.running_engine(fakes.streams) as good,
        fakes.running_router(bad.url, good.url) as router,
    ):
        for _ in range(2):  # turns are taken: one of the two requests meets the bad engine first
            async with client.post(router.url + "/v1/completions", data=BODY) as response:
                assert (await response.read()).endswith(fakes.DONE)
        assert len(bad.calls) >= 1
        assert len(good.calls) == 2
        async with client.get(router.metrics_url + "/metrics") as response:
            text = await response.text()
        counted = re.search(rf'retries_total{{reason="{reason}"}} (\d+)', text)
        assert counted is not None
        assert int(counted[1]) == len(bad.calls)


async def test_an_engine_that_is_full_for_one_tenant_is_the_answer(
    client: aiohttp.ClientSession,
) -> None:
    """Each other engine would be asked out of the retries of all tenants."""
    refuses = fakes.refuses(429, {"Retry-After": "1"}, code="tenant_full")
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(fakes.running_engine(refuses)) for _ in range(3)]
        for engine in engines:
            engine.load = fakes.load_report(max_queued_requests=8)
        router = await stack.enter_async_context(
            fakes.running_router(*(engine.url for engine in engines))
        )
        for engine in engines:
            await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        async with client.post(router.url + "/v1/completions", data=BODY) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "1"
            assert (await response.json())["error"]["code"] == "tenant_full"
        assert sum(len(engine.calls) for engine in engines) == 1


async def test_a_hundred_requests_of_a_killed_engine_are_answered_by_another() -> None:
    async def dies_when_let(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        await engine.gate.wait()
        fakes.break_connection(request)
        return web.Response()

    async def answers_when_let(
        engine: fakes.FakeEngine, request: web.Request
    ) -> web.StreamResponse:
        await engine.gate.wait()
        return await fakes.answers_json(engine, request)

    async with (
        fakes.running_engine(dies_when_let) as killed,
        fakes.running_engine(answers_when_let) as other,
        fakes.running_router(killed.url, other.url) as router,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):

        async def status() -> int:
            async with client.post(router.url + "/v1/completions", data=BODY) as response:
                return response.status

        tasks = [asyncio.create_task(status()) for _ in range(200)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(killed.calls) + len(other.calls) < 200:
                assert not [task.result() for task in tasks if task.done()]
                await asyncio.sleep(0.01)
        assert len(killed.calls) >= 90
        killed.gate.set()
        other.gate.set()
        assert set(await asyncio.gather(*tasks)) == {200}


@pytest.mark.parametrize(
    ("behave", "status"),
    [
        (fakes.dies_before_answer, 502),
        (fakes.refuses(503, code="engine_died"), 503),
        (error_event, 502),
    ],
)
async def test_a_request_that_breaks_engines_breaks_two_at_most(
    client: aiohttp.ClientSession, behave: fakes.Behaviour, status: int
) -> None:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(fakes.running_engine(behave)) for _ in range(4)]
        urls = [engine.url for engine in engines]
        upstream = {"max_attempts": 9, "wait_for_engine_seconds": 5}
        router = await stack.enter_async_context(fakes.running_router(*urls, upstream=upstream))
        async with client.post(router.url + "/v1/completions", data=BODY) as response:
            assert response.status == status
            assert "error" in await response.json()
        assert sum(len(engine.calls) for engine in engines) == 2


async def test_a_grammar_that_is_not_compiled_is_offered_to_two_which_go_on_serving(
    client: aiohttp.ClientSession,
) -> None:
    """Its next requests are answered at once, though waiting for an engine would be refused."""

    async def compiles_none(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        behave = refuses if b"regex" in await request.read() else fakes.streams
        return await behave(engine, request)

    refuses = fakes.refuses(503, code="grammar_unavailable")
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(fakes.running_engine(compiles_none)) for _ in range(3)
        ]
        urls = [engine.url for engine in engines]
        upstream = {"max_attempts": 9, "wait_for_engine_seconds": 0.1}
        router = await stack.enter_async_context(fakes.running_router(*urls, upstream=upstream))
        for round_ in range(1, 4):
            body = b'{"model": "m", "prompt": "x", "guided_regex": "a"}'
            async with client.post(router.url + "/v1/completions", data=body) as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == "grammar_unavailable"
            asked = sum(b"regex" in sent for engine in engines for _, _, sent in engine.calls)
            assert asked == 2 * round_
            for _ in engines:
                assert (await read_all(client, router.url)).endswith(fakes.DONE)


async def test_engines_that_refuse_do_not_count_as_broken(client: aiohttp.ClientSession) -> None:
    async with AsyncExitStack() as stack:
        refuses = fakes.refuses(503, code="unavailable")
        behaviours = [refuses, refuses, refuses, fakes.dies_before_answer]
        engines = [await stack.enter_async_context(fakes.running_engine(b)) for b in behaviours]
        good = await stack.enter_async_context(fakes.running_engine(fakes.streams))
        urls = [NOBODY, *(engine.url for engine in engines), good.url]
        upstream = {"max_attempts": 6}
        router = await stack.enter_async_context(fakes.running_router(*urls, upstream=upstream))
        for _ in range(6):
            assert (await read_all(client, router.url)).endswith(fakes.DONE)


async def test_an_unreachable_engine_is_retried_elsewhere(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.streams) as good,
        fakes.running_router(NOBODY, good.url) as router,
    ):
        for _ in range(4):
            async with client.post(router.url + "/v1/completions", data=BODY) as response:
                assert (await response.read()).endswith(fakes.DONE)


async def test_an_unreachable_service_is_a_readable_error(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_router(NOBODY) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status in (502, 503)  # found out by the request, or by the load poll
        assert (await response.json())["error"]["code"] in ("engine_failed", "no_engine")


async def test_an_error_event_instead_of_a_stream_reaches_the_client_as_an_error(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(error_event) as engine,
        fakes.running_router(engine.url, upstream={"max_attempts": 1}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == 502
        assert (await response.json())["error"]["message"] == "engine process died"


@pytest.mark.parametrize("status", [400, 404, 422, 500])
async def test_other_answers_pass_as_they_are_and_are_not_retried(
    client: aiohttp.ClientSession, status: int
) -> None:
    async with (
        fakes.running_engine(fakes.refuses(status)) as first,
        fakes.running_engine(fakes.refuses(status)) as second,
        fakes.running_router(first.url, second.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == status
        assert (await response.json())["error"]["message"] == "told to"
        assert len(first.calls) + len(second.calls) == 1


async def test_429_from_every_engine_passes_with_its_retry_after(
    client: aiohttp.ClientSession,
) -> None:
    full = fakes.refuses(429, {"Retry-After": "7"})
    async with (
        fakes.running_engine(full) as first,
        fakes.running_engine(full) as second,
        fakes.running_router(first.url, second.url, upstream={"max_attempts": 9}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == 429
        assert response.headers["Retry-After"] == "7"
        assert (await response.json())["error"]["message"] == "told to"
        assert (len(first.calls), len(second.calls)) == (1, 1)
        async with client.get(router.metrics_url + "/load") as load:  # a full queue is no failure
            rows = (await load.json())["engines"]
        assert [row["condition"] for row in rows] == ["ready", "ready"]


async def test_an_engine_that_dies_in_the_stream_ends_it_with_one_error_event(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(fakes.dies_in_stream) as engine,
        fakes.running_engine(fakes.dies_in_stream) as other,
        fakes.running_router(engine.url, other.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        engine.gate.set()
        other.gate.set()
        events = (await response.read()).split(b"\n\n")
        assert events[0] + b"\n\n" == fakes.EVENT % 0
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        assert events[2:] == [b""]
        assert len(engine.calls) + len(other.calls) == 1
        async with client.get(router.metrics_url + "/load") as load:
            rows = (await load.json())["engines"]
        assert sorted(row["condition"] for row in rows) == ["failing", "ready"]


async def test_a_stream_that_ends_early_is_an_error(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(ends_without_done) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert b"without its last event" in await response.read()


async def test_a_broken_plain_answer_cannot_pass_for_complete(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(dies_mid_body) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        engine.gate.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


@pytest.mark.parametrize("behave", [fakes.hangs, fakes.streams_when_let])
async def test_a_client_that_leaves_ends_the_request_in_the_engine(
    client: aiohttp.ClientSession, behave: fakes.Behaviour
) -> None:
    async with (
        fakes.running_engine(behave) as engine,
        fakes.running_router(engine.url) as router,
    ):
        asking = asyncio.create_task(one_byte(client, router.url))
        await engine.asked.wait()
        asking.cancel()
        await asyncio.wait_for(engine.aborted.wait(), PATIENCE_SECONDS)
        async with client.get(router.metrics_url + "/load") as response:
            assert (await response.json())["engines"][0]["inflightRequests"] == 0
        async with client.get(router.metrics_url + "/metrics") as response:
            assert (
                'total{code="499",outcome="client_gone",route="/v1/completions"} 1.0'
                in await response.text()
            )


async def one_byte(client: aiohttp.ClientSession, url: str) -> None:
    async with client.post(url + "/v1/completions", data=BODY) as response:
        await response.content.readany()
        await asyncio.Event().wait()


async def test_no_engine_is_503_with_retry_after(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
    ):
        engine.load = fakes.load_report(draining=True)
        await until(client, router.metrics_url, lambda row: row["condition"] == "draining")
        async with client.post(router.url + "/v1/completions", data=BODY) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
            error = (await response.json())["error"]
        assert error["code"] == "no_engine"
        assert "draining: 1" in error["message"]
        assert not engine.calls


async def test_a_request_waits_for_an_engine_to_come(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url, upstream={"wait_for_engine_seconds": 10}) as router,
    ):
        engine.load = fakes.load_report(draining=True)
        await until(client, router.metrics_url, lambda row: row["condition"] == "draining")
        asking = asyncio.create_task(read_all(client, router.url))
        await until(client, router.metrics_url, lambda row: row["waitingRequests"] == 1)
        engine.load = fakes.load_report(draining=False)
        assert (await asyncio.wait_for(asking, PATIENCE_SECONDS)).endswith(fakes.DONE)


async def read_all(client: aiohttp.ClientSession, url: str) -> bytes:
    async with client.post(url + "/v1/completions", data=BODY) as response:
        return await response.read()


async def until(client: aiohttp.ClientSession, url: str, holds: Any) -> None:
    """Ask `/load` until its first row, with the totals beside it, is as wanted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with client.get(url + "/load") as response:
                summary = await response.json()
            if holds(summary | summary["engines"][0]):
                return


async def test_the_time_limit_ends_a_request(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.hangs) as engine,
        fakes.running_router(engine.url, upstream={"request_timeout_seconds": 1.0}) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "time_limit"
        await asyncio.wait_for(engine.aborted.wait(), PATIENCE_SECONDS)
