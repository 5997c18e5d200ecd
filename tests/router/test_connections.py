"""Every state of a connection is bounded in bytes and in time, whatever its client does."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.config.router import Auth
from sluice_contract.http_heads import MAX_HEAD_BYTES
from sluice_router import gate, listener

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import BODY, RawConnection, raw_connection, request_bytes
from tests.router.test_process import running

MEBIBYTE = 1024 * 1024
LATE_SECONDS = 0.5
ASK = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
PART_OF_A_HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: %s\r\n" % (b"x" * 8000) * 5
UNREAD_ASKS = 500
"""So many answers of 401 fill every buffer between a router and a client that reads nothing."""
MANY_HEADERS = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:\r\n" * 300 + b"\r\n"
"""aiohttp stops at 256 headers from 3.14 on; before, the router's own check finds them."""
SINCE_3_14 = pytest.mark.skipif(
    tuple(map(int, aiohttp.__version__.split(".")[:2])) < (3, 14), reason="aiohttp takes it"
)
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n"


async def buffered_bytes(router: fakes.RunningRouter, client: aiohttp.ClientSession) -> int:
    async with client.get(router.metrics_url + "/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith("sluice_router_buffered_bytes "):
                return int(float(line.split()[1]))
    raise AssertionError("no such metric")


async def until_buffered(
    router: fakes.RunningRouter, client: aiohttp.ClientSession, least: int, most: int
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if least <= await buffered_bytes(router, client) <= most:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def deaf_connection(url: str) -> AsyncIterator[asyncio.StreamWriter]:
    """A client that reads nothing, and whose kernel takes little."""
    where = urlsplit(url)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, (where.hostname, where.port))
        _, writer = await asyncio.open_connection(sock=one, limit=64)
        try:
            yield writer
        finally:
            writer.transport.abort()


def keys_in(folder: Path) -> Auth:
    (folder / "alice").write_text("secret")
    return Auth(keys_directory=str(folder))


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.process
async def test_heads_behind_unfinished_answers_do_not_fill_the_memory(tmp_path: Path) -> None:
    """12 clients, each with a head of 15 MB behind a stream that goes on."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(
        b"X-%d: " % n + b"x" * 60_000 + b"\r\n" for n in range(250)
    )
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams_when_let))
        config = tmp_path / "router.json"
        config.write_text(json.dumps({"engines": [engine.url], "server": fakes.LOOPBACK}))
        router = await stack.enter_async_context(running(config))
        before = router.resident_mebibytes()
        pipelining = [
            await stack.enter_async_context(raw_connection(router.url)) for _ in range(12)
        ]

        async def send(connection: RawConnection) -> None:
            connection.writer.write(request_bytes())
            assert b" 200 " in await connection.reader.readuntil(b"\r\n\r\n")
            connection.writer.write(head)
            await connection.writer.drain()

        await asyncio.wait([asyncio.create_task(send(one)) for one in pipelining], timeout=5)
        assert router.resident_mebibytes() - before < 40


async def test_what_comes_behind_an_unfinished_answer_is_counted_and_then_timed(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url) as router,
        raw_connection(router.url) as slow,
    ):
        asked = asyncio.create_task(slow.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        await until_buffered(router, client, 0, 200)
        slow.writer.write(PART_OF_A_HEAD)
        await until_buffered(router, client, 8000, 2 * len(PART_OF_A_HEAD))
        monkeypatch.setattr(gate, "HEAD_SECONDS", LATE_SECONDS)
        engine.gate.set()
        assert (await asked).body.endswith(fakes.DONE)
        late = await asyncio.wait_for(slow.answer(), PATIENCE_SECONDS)
        assert (late.status, late.closes) == (408, True)
        await until_buffered(router, client, 0, 0)


async def test_a_partial_head_in_the_packet_of_a_whole_request_is_counted_and_timed(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        raw_connection(router.url) as slow,
    ):
        monkeypatch.setattr(gate, "HEAD_SECONDS", LATE_SECONDS)
        slow.writer.write(request_bytes() + PART_OF_A_HEAD[:30_000])
        assert (await slow.answer()).status == 200
        assert 0 < await buffered_bytes(router, client) <= 40_000
        late = await asyncio.wait_for(slow.answer(), PATIENCE_SECONDS)
        assert (late.status, late.closes) == (408, True)


@pytest.mark.parametrize("per_packet", [1, 7, 1_000_000])
async def test_pipelined_requests_are_answered_in_order(per_packet: int) -> None:
    """However they are cut into packets: with a body, chunked, without one."""
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
    ):
        await pipelined_requests_are_answered(engine, router.url, per_packet)


@pytest.mark.process
@pytest.mark.parametrize("per_packet", [7, 1_000_000])
async def test_pipelined_requests_are_answered_in_order_on_the_loop_that_is_used(
    tmp_path: Path, per_packet: int
) -> None:
    async with fakes.running_engine(fakes.streams) as engine:
        config = tmp_path / "router.json"
        config.write_text(json.dumps({"engines": [engine.url], "server": fakes.LOOPBACK}))
        async with running(config) as router:
            await pipelined_requests_are_answered(engine, router.url, per_packet)


async def pipelined_requests_are_answered(
    engine: fakes.FakeEngine, url: str, per_packet: int
) -> None:
    bodies = [b'{"prompt": "%d", "stream": true}' % n for n in range(4)]
    chunks = [CHUNK % (len(part), part) for part in (bodies[2][:5], bodies[2][5:])]
    sent = b"".join(
        [
            request_bytes(bodies[0]),
            request_bytes(bodies[1]),
            CHUNKED + b"".join(chunks) + b"0\r\n\r\n",
            request_bytes(bodies[3]),
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        ]
    )
    async with raw_connection(url) as pipelining:
        for start in range(0, len(sent), per_packet):
            pipelining.writer.write(sent[start : start + per_packet])
            await asyncio.sleep(0)
        answers = [await asyncio.wait_for(pipelining.answer(), PATIENCE_SECONDS) for _ in range(5)]
        assert [answer.status for answer in answers] == [200] * 5
        assert [body for _, _, body in engine.calls] == bodies
        assert (await pipelining.ask()).status == 200


async def test_a_long_request_behind_an_answer_is_served() -> None:
    """More waits than one head may have, for that is not known before it is looked at."""
    long = b'{"prompt": "%s"}' % (b"x" * 2 * MAX_HEAD_BYTES)
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url) as router,
        raw_connection(router.url) as one,
    ):
        first = asyncio.create_task(one.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        one.writer.write(request_bytes(long))
        await asyncio.sleep(0.05)
        engine.gate.set()
        assert (await first).status == 200
        assert (await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)).status == 200
        assert engine.calls[1][2] == long


async def test_many_small_heads_at_once_are_not_taken_for_one_long_head(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than aiohttp parses ahead, and more bytes than one head may have."""
    monkeypatch.setattr(gate, "MAX_HEAD_BYTES", 2048)
    asked = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: %s\r\n\r\n" % (b"x" * 50)
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as one,
    ):
        one.writer.write(asked * 32 + asked[:-10])
        for _ in range(32):
            assert (await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)).status == 200
        one.writer.write(asked[-10:])
        assert (await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)).status == 200
        await until_buffered(router, client, 0, 0)
        for byte in asked:
            one.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)).status == 200
        await until_buffered(router, client, 0, 0)


async def test_a_connection_gives_back_every_byte_that_it_counted(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        raw_connection(router.url) as kept,
    ):
        for sent in (request_bytes() * 3, (CHUNKED + CHUNK % (len(BODY), BODY) + b"0\r\n\r\n") * 3):
            kept.writer.write(sent)
            for _ in range(3):
                assert (await kept.answer()).status == 200
            assert (await kept.ask()).status == 200
            assert await buffered_bytes(router, client) == 0


LONG = b"X-B: %s\r\n" % (b"x" * 8000)


@pytest.mark.parametrize("begin", [PART_OF_A_HEAD, CHUNKED + CHUNK % (len(BODY), BODY) + b"0\r\n"])
async def test_a_head_or_trailers_of_more_than_the_cap_in_all_are_answered_431(
    client: aiohttp.ClientSession, begin: bytes
) -> None:
    many = LONG * ((MAX_HEAD_BYTES - len(begin)) // len(LONG))
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        raw_connection(router.url) as one,
    ):
        one.writer.write(begin)
        await until_buffered(router, client, 1, len(begin))
        one.writer.write(many)
        await until_buffered(router, client, len(many), MAX_HEAD_BYTES)
        one.writer.write(LONG * 2)
        answer = await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (431, True)
        assert json.loads(answer.body)["error"]["code"] == "head_too_large"
        assert not engine.calls
        await until_buffered(router, client, 0, 0)


async def test_a_client_that_reads_no_answer_holds_up_no_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WRITE_SECONDS", 0.2)
    monkeypatch.setattr(listener, "SOCKET_BUFFER_BYTES", 4096)
    server = {"drain_seconds": 2 * PATIENCE_SECONDS}
    async with (
        fakes.running_router("http://127.0.0.1:9", server=server, auth=keys_in(tmp_path)) as router,
        deaf_connection(router.url) as deaf,
    ):
        deaf.write(ASK * UNREAD_ASKS)
        await asyncio.sleep(0.1)
        router.stop.set()
        await asyncio.wait_for(asyncio.shield(router.task), PATIENCE_SECONDS)


async def test_at_the_cap_the_connection_that_idles_longest_is_closed() -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams))
        router = await stack.enter_async_context(
            fakes.running_router(engine.url, server={"max_connections": 3})
        )

        async def connected() -> RawConnection:
            return await stack.enter_async_context(raw_connection(router.url))

        silent, first, second = [await connected() for _ in range(3)]
        for idle in (second, first):
            assert (await idle.ask()).status == 200
        for latest, closed in (await connected(), silent), (await connected(), second):
            assert (await latest.ask()).status == 200
            assert await asyncio.wait_for(closed.reader.read(), PATIENCE_SECONDS) == b""
        assert (await first.ask()).status == 200


async def answers_50_kilobytes(
    engine: fakes.FakeEngine, request: web.Request
) -> web.StreamResponse:
    return web.Response(body=b"x" * 50_000)


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED,
        ASK * UNREAD_ASKS,
        ASK.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer secret\r\n\r\n"),
    ],
    ids=["a body that does not come", "answers that nobody reads", "an answer that nobody reads"],
)
async def test_connections_that_were_answered_keep_nobody_out(
    sent: bytes, tmp_path: Path, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them need no key, so anybody could open as many as there may be."""
    monkeypatch.setattr(listener, "SOCKET_BUFFER_BYTES", 4096)
    for name in ("DISCARD_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(gate, name, 2 * PATIENCE_SECONDS)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(answers_50_kilobytes))
        server, auth = {"max_connections": 3}, keys_in(tmp_path)
        router = await stack.enter_async_context(
            fakes.running_router(engine.url, server=server, auth=auth)
        )
        for _ in range(3):
            deaf = await stack.enter_async_context(deaf_connection(router.url))
            deaf.write(sent)
        headers, served = {"Authorization": "Bearer secret", "Connection": "close"}, 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while served < 5:  # 429 while all three are being answered
                async with client.get(router.url + "/v1/models", headers=headers) as response:
                    served += response.status == 200


async def test_bodies_that_do_not_come_are_no_requests_that_are_served(
    client: aiohttp.ClientSession,
) -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url, server={"max_requests": 1}) as router,
        raw_connection(router.url) as slow,
        raw_connection(router.url) as other,
    ):
        slow.writer.write(request_bytes()[:-1])
        await until_buffered(router, client, len(BODY) - 1, 1000)
        assert (await other.ask()).status == 200
        slow.writer.write(request_bytes()[-1:])
        assert (await slow.answer()).status == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"this is no request\r\n\r\n", 400, "bad_request"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\n", 400, "bad_request", marks=SINCE_3_14),
        (MANY_HEADERS, 431, "head_too_large|too_many_headers"),
        (MANY_HEADERS.replace(b"A:\r\n" * 200, b""), 431, "too_many_headers"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 70_000, 431, "head_too_large"),
    ],
    ids=["no HTTP", "no host", "very many headers", "many headers", "a long header"],
)
async def test_what_the_library_refuses_is_answered_in_json_and_logged_without_a_traceback(
    sent: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as one,
    ):
        one.writer.write(sent)
        answer = await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (status, True)
        assert re.fullmatch(code, json.loads(answer.body)["error"]["code"])
        assert b"server:" not in answer.headers.lower()
        assert await one.reader.read() == b""
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_unknown_expectation_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as one,
    ):
        one.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: x\r\n\r\n")
        assert (await asyncio.wait_for(one.answer(), PATIENCE_SECONDS)).status == 417
    assert not [record for record in caplog.records if record.exc_info]
