"""Memory is bounded, whatever clients send and however slowly: caps, time limits, 429 and 408."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from sluice_contract import http_errors
from sluice_contract.wire.private_calls import AnswerStart, EventComment, comment_line
from sluice_router import connections

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import RawConnection, raw_connection
from tests.router.test_process import running

MEBIBYTE = 1024 * 1024
LATE_SECONDS = 0.5
"""Long enough for a client that does send something to have done so."""
LARGE = b'{"prompt": "' + b"x" * (4 * MEBIBYTE) + b'"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def all_but_one_byte_of(connection: RawConnection, body: bytes) -> None:
    connection.writer.write(HEAD % len(body) + body[:-1])
    await connection.writer.drain()


async def first_answers(*waiting: RawConnection, at_least: int = 1) -> list[int]:
    """Statuses of what came so far, once so many came."""
    tasks = [asyncio.create_task(connection.answer()) for connection in waiting]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for count, answered in enumerate(asyncio.as_completed(tasks), 1):
            await answered
            if count == at_least:
                break
    await asyncio.wait(tasks, timeout=0.5)
    done = [task.result().status for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


@pytest.mark.process
async def test_slow_uploads_fill_a_part_of_the_budget_and_nothing_more(tmp_path: Path) -> None:
    """30 clients hold back the last byte of 4 MiB each; a budget of 32 MiB takes 6 of them."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams))
        config = tmp_path / "router.json"
        server = fakes.LOOPBACK | {"drainSeconds": 0.1, "maxBufferedBytes": 32 * MEBIBYTE}
        config.write_text(json.dumps({"engines": [engine.url], "server": server}))
        router = await stack.enter_async_context(running(config))
        before = router.resident_mebibytes()
        slow = [await stack.enter_async_context(raw_connection(router.url)) for _ in range(30)]
        await asyncio.gather(*(all_but_one_byte_of(one, LARGE) for one in slow))
        refused = await first_answers(*slow, at_least=30 - 6)
        assert set(refused) == {429}
        assert router.resident_mebibytes() - before < 40
        async with raw_connection(router.url) as small:
            answer = await small.ask()
            assert (answer.status, answer.body[-len(fakes.DONE) :]) == (200, fakes.DONE)


async def test_a_body_is_let_go_when_its_answer_begins() -> None:
    """Six streams at once, each begun by 4 MiB, with a budget for one."""
    server = {"max_buffered_bytes": 6 * MEBIBYTE}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams_when_let))
        router = await stack.enter_async_context(fakes.running_router(engine.url, server=server))
        streams = []
        for _ in range(6):
            stream = await stack.enter_async_context(raw_connection(router.url))
            stream.writer.write(HEAD % len(LARGE) + LARGE)
            head = await asyncio.wait_for(stream.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
            assert b" 200 " in head
            streams.append(stream)
        engine.gate.set()
        for stream in streams:
            rest = await asyncio.wait_for(stream.reader.readuntil(b"0\r\n\r\n"), PATIENCE_SECONDS)
            assert fakes.DONE in rest
        assert [body for _, _, body in engine.calls] == [LARGE] * 6


async def answers_whole(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """In the private form, an answer of 30 MiB that was not asked for as events."""
    response = await fakes.start_stream(request)
    start = AnswerStart("c", 1, "ab", [1], 1, "m1")
    await response.write(comment_line(EventComment(start, last=True)) + b'data: {"text":"')
    for _ in range(30):
        await response.write(b"x" * MEBIBYTE)
    await response.write(b'"}\n\n' + fakes.DONE)
    return response


@pytest.mark.process
@pytest.mark.parametrize(("budget_mebibytes", "status"), [(64, 200), (16, 429)])
async def test_an_answer_that_is_not_streamed_is_held_once_and_counted(
    tmp_path: Path, budget_mebibytes: int, status: int
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(answers_whole))
        engine.load = fakes.load_report(private_calls=True, answer_identity="m1")
        server = fakes.LOOPBACK | {"maxBufferedBytes": budget_mebibytes * MEBIBYTE}
        key = str(tmp_path / "key")
        content = {"engines": [engine.url], "handoverKeyFile": key, "server": server}
        config = tmp_path / "router.json"
        config.write_text(json.dumps(content))
        router = await stack.enter_async_context(running(config))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        before = router.resident_mebibytes()
        async with client.post(router.url + "/v1/completions", data=b'{"prompt":"x"}') as answer:
            assert answer.status == status
            length = sum([len(piece) async for piece in answer.content.iter_any()])
            assert (length > 30 * MEBIBYTE) == (status == 200)
        assert router.peak_mebibytes() - before < 60


async def test_requests_beyond_the_cap_are_answered_429_until_one_ends() -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"max_requests": 1}) as router,
        raw_connection(router.url) as running_one,
        raw_connection(router.url) as other,
    ):
        first = asyncio.create_task(running_one.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        refused = await other.ask()
        assert refused.status == 429
        assert b"Retry-After: 1" in refused.headers
        assert json.loads(refused.body)["error"]["code"] == "router_full"
        engine.gate.set()
        assert (await first).status == 200
        assert (await other.ask()).status == 200


async def test_connections_beyond_the_cap_are_answered_429_where_none_idles() -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"max_connections": 1}) as router,
        raw_connection(router.url) as first,
    ):
        asked = asyncio.create_task(first.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        async with raw_connection(router.url) as second:
            refused = await second.answer()
            assert (refused.status, refused.closes) == (429, True)
        engine.gate.set()
        assert (await asked).status == 200
        assert (await first.ask()).status == 200


@pytest.mark.parametrize("answered_before", [False, True])
async def test_a_head_that_does_not_end_is_answered_408(
    answered_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        AsyncExitStack() as stack,
    ):
        if not answered_before:
            monkeypatch.setattr(connections, "HEAD_SECONDS", LATE_SECONDS)
        slow = await stack.enter_async_context(raw_connection(router.url))
        if answered_before:
            assert (await slow.ask()).status == 200
            monkeypatch.setattr(connections, "HEAD_SECONDS", LATE_SECONDS)
        slow.writer.write(b"POST /v1/completions HTTP/1.1\r\nX-A: ")
        answer = await asyncio.wait_for(slow.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (408, True)
        assert json.loads(answer.body)["error"]["code"] == "head_timeout"
        assert await slow.reader.read() == b""


async def test_heads_count_against_the_budget_until_they_are_complete() -> None:
    endless = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(
        b"X-%d: " % n + b"x" * 8000 + b"\r\n" for n in range(15)
    )
    async with (
        fakes.running_router("http://127.0.0.1:9", server={"max_buffered_bytes": 375_000}) as up,
        AsyncExitStack() as stack,
    ):
        slow = [await stack.enter_async_context(raw_connection(up.url)) for _ in range(5)]
        for connection in slow:
            connection.writer.write(endless)
        refused = await first_answers(*slow, at_least=3)
        assert set(refused) == {429}
        assert len(refused) in (3, 4)
        for connection in slow:
            connection.writer.transport.abort()
        for _ in range(10):  # more than the budget, one after the other
            async with raw_connection(up.url) as connection:
                connection.writer.write(endless + b"\r\n")
                assert (await connection.answer()).status == 200


async def test_a_silent_new_connection_is_closed_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", LATE_SECONDS)
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as silent,
    ):
        assert await asyncio.wait_for(silent.reader.read(), PATIENCE_SECONDS) == b""


async def test_a_body_that_does_not_end_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_errors, "BODY_SECONDS", LATE_SECONDS)
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as slow,
    ):
        slow.writer.write(HEAD % 100 + b"{")
        answer = await asyncio.wait_for(slow.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (408, True)
        assert json.loads(answer.body)["error"]["code"] == "body_timeout"
