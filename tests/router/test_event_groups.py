"""Events that belong together are held until all are here: counted, once, and written in pieces."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.wire.private_calls import MORE_LINE, AnswerStart, EventComment, comment_line
from sluice_router import relay
from sluice_router.byte_budget import SMALL_BYTES, Body, ByteBudget
from sluice_router.errors import OverloadedError
from sluice_router.sse import DONE

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import raw_connection, request_bytes
from tests.router.test_connections import deaf_connection, until_buffered
from tests.router.test_process import running

MEBIBYTE = 1024 * 1024
START = comment_line(EventComment(AnswerStart("c", 1, "ab", [1], 1, "m1")))
LONG_EVENT = b'data: {"text":"' + b"x" * (4 * MEBIBYTE) + b'"}\n\n'
GROUP = MORE_LINE + START + LONG_EVENT + LONG_EVENT
CLIENTS = 12


async def sends_a_group(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """8 MiB, of which the last event waits for the gate; then the end."""
    response = await fakes.start_stream(request)
    for begin in range(0, len(GROUP) - 2, MEBIBYTE):
        await response.write(GROUP[begin : min(begin + MEBIBYTE, len(GROUP) - 2)])
    engine.blocked.set()
    await engine.gate.wait()
    await response.write(GROUP[-2:] + DONE)
    return response


async def sends_the_same_without_comments(
    engine: fakes.FakeEngine, request: web.Request
) -> web.StreamResponse:
    """One event, as to a request that is no private call."""
    response = await fakes.start_stream(request)
    await response.write(LONG_EVENT[:-2])
    engine.blocked.set()
    await engine.gate.wait()
    await response.write(LONG_EVENT[-2:] + DONE)
    return response


def private_engine(engine: fakes.FakeEngine) -> None:
    engine.load = fakes.load_report(private_calls=True, answer_identity="m1")


@pytest.mark.parametrize("private", [True, False])
async def test_what_is_held_of_a_group_is_counted_until_it_is_written(
    private: bool, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    behave = sends_a_group if private else sends_the_same_without_comments
    key: dict[str, Any] = {"handover_key_file": str(tmp_path / "key")} if private else {}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(behave))
        if private:
            private_engine(engine)
        router = await stack.enter_async_context(fakes.running_router(engine.url, **key))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        asking = await stack.enter_async_context(raw_connection(router.url))
        asking.writer.write(request_bytes())
        await asyncio.wait_for(engine.blocked.wait(), PATIENCE_SECONDS)
        held = len(GROUP if private else LONG_EVENT)
        await until_buffered(router, client, held - 2, held + 1000)
        engine.gate.set()
        answer = await asyncio.wait_for(asking.answer(), PATIENCE_SECONDS)
        assert answer.body == LONG_EVENT * (1 + private) + DONE
        await until_buffered(router, client, 0, 0)


@pytest.mark.parametrize("private", [True, False])
async def test_events_that_have_arrived_are_one_write(private: bool, tmp_path: Path) -> None:
    events = [b'data: {"text":"%d"}\n\n' % number for number in range(50)]
    comments = [START, *(comment_line(EventComment(c=[(0, [n])])) for n in range(1, 50))]
    sent = [c * private + event for c, event in zip(comments, events, strict=True)]

    async def behave(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        response = await fakes.start_stream(request)
        await response.write(sent[0])
        await engine.gate.wait()
        for event in [*sent[1:], DONE]:  # the router has no turn in between
            await response.write(event)
        return response

    (tmp_path / "key").write_bytes(b"k" * 32)
    key: dict[str, Any] = {"handover_key_file": str(tmp_path / "key")} if private else {}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(behave))
        if private:
            private_engine(engine)
        router = await stack.enter_async_context(fakes.running_router(engine.url, **key))
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        asking = await stack.enter_async_context(raw_connection(router.url))
        asking.writer.write(request_bytes())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asking.reader.readuntil(b"\r\n\r\n")
            chunks = asking.chunks()
            assert await anext(chunks) == events[0]
            engine.gate.set()
            rest = [chunk async for chunk in chunks]
    assert b"".join(rest) == b"".join(events[1:]) + DONE
    assert len(rest) < 5


@pytest.mark.parametrize("begun", [False, True])
async def test_a_group_that_does_not_fit_is_429_or_an_error_event(
    begun: bool, tmp_path: Path
) -> None:
    first = START + b'data: {"first":true}\n\n'

    async def behave(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        if not begun:
            return await sends_a_group(engine, request)
        response = await fakes.start_stream(request)
        await response.write(first)
        await asyncio.sleep(0.1)
        await response.write(MORE_LINE + LONG_EVENT + LONG_EVENT + DONE)
        return response

    (tmp_path / "key").write_bytes(b"k" * 32)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(behave))
        private_engine(engine)
        router = await stack.enter_async_context(
            fakes.running_router(
                engine.url,
                server={"max_buffered_bytes": 2 * MEBIBYTE},
                handover_key_file=str(tmp_path / "key"),
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        body = b'{"model": "m", "stream": true}'
        async with client.post(router.url + "/v1/completions", data=body) as response:
            answer = await response.read()
        assert response.status == (200 if begun else 429)
        assert b'"code":"router_full"' in answer
        assert answer.startswith(b'data: {"first":true}\n\ndata: {"error"') == begun
        await until_buffered(router, client, 0, 0)


async def test_a_long_event_that_cannot_be_finished_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error event in the middle of another event would be read as a part of it."""
    monkeypatch.setattr(relay, "FAIL_SECONDS", PATIENCE_SECONDS)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            fakes.running_engine(sends_the_same_without_comments)
        )
        router = await stack.enter_async_context(
            fakes.running_router(engine.url, upstream={"request_timeout_seconds": 0.5})
        )
        engine.gate.set()
        asking = await stack.enter_async_context(raw_connection(router.url))
        asking.writer.write(request_bytes())
        await asyncio.sleep(1.0)
        answer = b""
        while chunk := await asyncio.wait_for(asking.reader.read(65_536), PATIENCE_SECONDS):
            answer += chunk
        assert b'data: {"text"' in answer
        assert b"time_limit" not in answer
        assert not answer.endswith(b"0\r\n\r\n")


@pytest.mark.process
async def test_clients_that_read_nothing_of_a_long_group_do_not_fill_the_memory(
    tmp_path: Path,
) -> None:
    """12 clients of 8 MiB each; a budget of 64 MiB has room for some."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(sends_a_group))
        private_engine(engine)
        engine.gate.set()
        content = {"engines": [engine.url], "handoverKeyFile": str(tmp_path / "key")}
        server = fakes.LOOPBACK | {"maxBufferedBytes": 64 * MEBIBYTE}
        config = tmp_path / "router.json"
        config.write_text(json.dumps(content | {"server": server}))
        router = await stack.enter_async_context(running(config))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await until_private(client, f"http://127.0.0.1:{router.metrics_port}")
        before = router.resident_mebibytes()
        for _ in range(CLIENTS):
            deaf = await stack.enter_async_context(deaf_connection(router.url))
            deaf.write(request_bytes())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(engine.calls) < CLIENTS:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        assert router.peak_mebibytes() - before < 80


async def until_private(client: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with client.get(url + "/load") as response:
                rows = (await response.json())["engines"]
            if all((row.get("report") or {}).get("privateCalls") for row in rows):
                return
            await asyncio.sleep(0.05)


def test_what_is_held_elsewhere_is_counted_for_its_tenant_and_given_back() -> None:
    budget = ByteBudget(1024 * 1024)
    body = Body(budget, "a")
    body.hold(2 * SMALL_BYTES)
    assert budget.held_bytes == budget.shares.held("a") == 2 * SMALL_BYTES
    body.hold(SMALL_BYTES)
    assert budget.held_bytes == SMALL_BYTES
    with pytest.raises(OverloadedError, match="your requests"):
        body.hold(1024 * 1024)
    assert budget.held_bytes == SMALL_BYTES
    body.release()
    assert budget.held_bytes == budget.shares.held("a") == 0
