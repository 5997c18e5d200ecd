"""The socket that the engine's HTTP server listens on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from sluice_runtime.server.http import HttpProtocol, HttpServer, listen
from starlette.types import Receive, Scope, Send

from tests.patience import PATIENCE_SECONDS


def test_the_second_write_of_an_answer_does_not_wait_for_the_first_to_be_acknowledged() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


LATE_SECONDS = 0.4
"""Long enough for a client that does send something to have done so."""
HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n"
Connect = Callable[[], "asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]"]


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """After longer than a head may take here, so that only what is no head is waited for."""
    await asyncio.sleep(1.5 * LATE_SECONDS)
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest_asyncio.fixture
async def connect(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """Connects to a server where a head may take `LATE_SECONDS`, and an answer takes longer."""
    monkeypatch.setattr(HttpProtocol, "head_seconds", LATE_SECONDS)
    listener = listen("127.0.0.1", 0)
    server = HttpServer(_answer)
    serving = asyncio.create_task(server.serve([listener]))
    address = listener.getsockname()
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield lambda: asyncio.ensure_future(asyncio.open_connection(*address))
    server.should_exit = True
    await serving


def error_of(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return head.splitlines()[0], json.loads(body)["error"]["message"]


LATE = (b"HTTP/1.1 408 Request Timeout", "the request's head did not arrive within 0.4 seconds")


@pytest.mark.parametrize("parts", [[HEAD], [b"G", b"ET / HTTP/1.1\r\n", b"a: b\r\n"]])
async def test_a_head_that_does_not_end_is_a_408_that_ends_the_connection(
    connect: Connect, parts: list[bytes]
) -> None:
    """However it trickles in."""
    reader, writer = await connect()
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0.03)
    assert error_of(await reader.read()) == LATE
    writer.close()


async def test_a_connection_that_sends_nothing_is_closed(connect: Connect) -> None:
    reader, writer = await connect()
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("begin", [HEAD, b"\r\n"])
async def test_the_head_of_a_later_request_has_the_same_time_limit(
    connect: Connect, begin: bytes
) -> None:
    reader, writer = await connect()
    writer.write(HEAD + b"\r\n")
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    await asyncio.sleep(1.5 * LATE_SECONDS)  # a connection may idle for longer than a head may take
    writer.write(begin)
    assert error_of(await reader.read()) == LATE
    writer.close()


async def test_half_a_head_behind_a_request_does_not_cut_its_answer(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(HEAD + b"\r\n" + HEAD)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    assert error_of(await reader.read()) == LATE
    writer.close()
