"""The gate alone, with aiohttp behind it and a transport that only notes what it is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from sluice_router import gate as gates
from sluice_router.byte_budget import HeadBudget
from sluice_router.errors import OverloadedError, RouterError
from sluice_router.gate import MAX_WAITING_BYTES, ConnectionLimits, Gate
from sluice_router.listener import ServerProtocol, begin_request
from sluice_router.tenants import Uploads

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
TURNS = 20
"""So many turns of the loop are enough for whatever needs no more bytes."""
REFUSAL = OverloadedError("told to")


class FakeTransport(asyncio.Transport):
    """A client's transport."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.written = b""
        self.reads = True
        self.aborted = False
        self.unread_bytes = 0
        """Bytes that the client has not read."""
        self.ends = socket.socketpair()
        self._closes = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.ends[0] if name == "socket" else default

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self._closes

    def close(self) -> None:
        self._closes = True
        if not self.unread_bytes:
            asyncio.get_running_loop().call_soon(self.gate.connection_lost, None)

    def abort(self) -> None:
        self.unread_bytes, self.aborted = 0, True
        self.close()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high == 0 and self.unread_bytes:
            self.gate.pause_writing()

    @property
    def statuses(self) -> list[int]:
        return [int(answer[:3]) for answer in self.written.split(b"HTTP/1.1 ")[1:]]


class GatedServer:
    """Connections of one server, whose handler reads a body and then waits where the path is
    `/wait`, and reads nothing where it is `/refuse`."""

    def __init__(self, max_bytes: int = 1 << 20, max_connections: int = 9) -> None:
        self.refusals: list[int] = []
        self.bodies: list[bytes] = []
        self.let = asyncio.Event()
        self.heads = HeadBudget(max_bytes)
        self.limits = ConnectionLimits(max_connections, self.heads, None, self.refusals.append)
        self._server = web.Server(self._answer, handler_cancellation=True)
        self._server.request_factory = partial(begin_request, self._server.request_factory)
        self._transports: list[FakeTransport] = []

    def connect(self) -> tuple[Gate, FakeTransport]:
        gate = ServerProtocol(self._server, self.limits, asyncio.get_running_loop()).gate
        transport = FakeTransport(gate)
        self._transports.append(transport)
        gate.connection_made(transport)
        return gate, transport

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/refuse":
            return web.Response(status=401)
        self.bodies.append(await request.read())
        if request.path == "/wait":
            await self.let.wait()
        return web.Response()

    async def close(self) -> None:
        for transport in self._transports:
            transport.abort()
        await turns()
        await self._server.shutdown(0)
        for transport in self._transports:
            for end in transport.ends:
                end.close()


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[GatedServer]:
    server = GatedServer()
    yield server
    await server.close()


@pytest.fixture
async def small_server() -> AsyncIterator[GatedServer]:
    """A budget of 1,000 bytes, and one connection."""
    server = GatedServer(max_bytes=1000, max_connections=1)
    yield server
    await server.close()


async def test_a_head_is_counted_until_it_is_complete(server: GatedServer) -> None:
    gate, transport = server.connect()
    whole = GET % b""
    gate.data_received(whole[:10])
    await turns()
    assert server.heads.held_bytes == 10
    gate.data_received(whole[10:])
    await turns()
    assert (transport.statuses, server.heads.held_bytes) == ([200], 0)


async def test_a_whole_head_gives_no_bytes_up_in_the_turn_in_which_it_ends(
    small_server: GatedServer,
) -> None:
    small_server.limits = replace(small_server.limits, max_connections=9)
    first, transport = small_server.connect()
    whole = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"x" * 600 + b"\r\n\r\n"
    first.data_received(whole[:-2])
    await turns()
    other, refused = small_server.connect()
    other.data_received(whole[:-2])
    first.data_received(whole[-2:])
    await turns()
    assert (transport.statuses, refused.statuses) == ([200], [429])


async def test_a_connection_whose_request_just_came_is_not_closed_for_another(
    small_server: GatedServer,
) -> None:
    gate, transport = small_server.connect()
    gate.data_received(GET % b"")
    _, refused = small_server.connect()
    await turns()
    assert (transport.statuses, refused.statuses) == ([200], [429])


async def test_a_connection_with_bytes_in_the_kernel_is_not_closed_for_another(
    small_server: GatedServer,
) -> None:
    _, transport = small_server.connect()
    transport.ends[1].send(b"G")
    small_server.connect()
    assert small_server.refusals == [429]
    assert not transport.is_closing()


async def test_the_connection_that_got_nothing_for_longest_is_closed_for_another(
    server: GatedServer,
) -> None:
    (first, first_transport), (_, second_transport) = server.connect(), server.connect()
    first.data_received(b"GET /")
    await turns()
    assert server.limits.close_one()
    assert (first_transport.is_closing(), second_transport.is_closing()) == (False, True)


@pytest.mark.parametrize("young_seconds", [60.0, 0.0])
async def test_a_body_beyond_its_tenants_share_ends_before_the_wait_of_a_new_client(
    server: GatedServer, monkeypatch: pytest.MonkeyPatch, young_seconds: float
) -> None:
    """Clients that connect at the same time would else close each other's connections."""
    monkeypatch.setattr(gates, "YOUNG_SECONDS", young_seconds)
    uploads, ended = Uploads(2), list[RouterError]()
    server.limits = replace(server.limits, uploads=uploads)
    _, transport = server.connect()
    with uploads.upload("greedy", ended.append), uploads.upload("greedy", ended.append):
        assert server.limits.close_one()
    assert (len(ended), transport.is_closing()) == ((1, False) if young_seconds else (0, True))


@pytest.mark.parametrize(
    "request_bytes",
    [
        CHUNKED + b"1\r\nx\r\n" * 200 + b"0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost:     x\r\nContent-Length: 1\r\n\r\nx",
    ],
    ids=["frames of chunks", "blanks"],
)
async def test_what_belongs_to_a_request_is_not_taken_for_a_head_behind_it(
    server: GatedServer, request_bytes: bytes
) -> None:
    gate, transport = server.connect()
    for number in range(2):
        gate.data_received(request_bytes)
        await turns()
        assert transport.statuses == [200] * (number + 1)
        assert server.heads.held_bytes == 0


async def test_a_partial_head_behind_a_request_is_counted(server: GatedServer) -> None:
    gate, transport = server.connect()
    part = b"GET / HTTP/1.1\r\nX-A: " + b"x" * 500
    gate.data_received(GET % b"" + part)
    await turns()
    assert transport.statuses == [200]
    assert server.heads.held_bytes == len(part)


async def test_frames_of_a_long_body_do_not_add_up(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.data_received(CHUNKED)
    for _ in range(300):
        gate.data_received(b"1\r\nx\r\n" * 100)
        await turns(3)
        assert server.heads.held_bytes <= 600
    gate.data_received(b"0\r\n\r\n")
    await turns()
    assert (transport.statuses, server.bodies) == ([200], [b"x" * 30_000])


async def test_a_body_that_ends_behind_an_answer_is_read(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.data_received(GET % b"wait" + POST % (b"", 4) + b"ab")
    await turns()
    gate.data_received(b"cd")
    server.let.set()
    await turns()
    assert (transport.statuses, server.bodies) == ([200, 200], [b"", b"abcd"])


async def test_reading_pauses_beyond_what_may_wait_behind_an_answer(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.data_received(GET % b"wait")
    await turns()
    long = POST % (b"", MAX_WAITING_BYTES) + b"x" * MAX_WAITING_BYTES
    gate.data_received(long[:MAX_WAITING_BYTES])
    assert not transport.reads
    assert server.heads.held_bytes == MAX_WAITING_BYTES
    server.let.set()
    await turns()
    assert transport.reads
    gate.data_received(long[MAX_WAITING_BYTES:])
    await turns()
    assert transport.statuses == [200, 200]


async def test_reading_pauses_while_nobody_takes_a_body(
    server: GatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, transport = server.connect()
    reading = asyncio.Event()
    read = web.BaseRequest.read

    async def read_late(request: web.BaseRequest) -> bytes:
        await reading.wait()
        return await read(request)

    monkeypatch.setattr(web.BaseRequest, "read", read_late)
    gate.data_received(POST % (b"", 900_000))
    await turns()
    sent = 0
    while transport.reads:
        gate.data_received(b"x" * 50_000)
        sent += 50_000
        assert sent < 900_000
    reading.set()
    await turns()
    assert transport.reads
    gate.data_received(b"x" * (900_000 - sent))
    await turns()
    assert (transport.statuses, len(server.bodies[0])) == ([200], 900_000)


async def test_a_body_whose_frames_are_few_makes_no_way(small_server: GatedServer) -> None:
    small_server.limits = replace(small_server.limits, max_connections=9)
    gate, transport = small_server.connect()
    gate.data_received(CHUNKED)
    await turns()
    gate.data_received(b"2\r\nab\r\n")
    await turns()
    assert small_server.heads.held_bytes > 0
    other, refused = small_server.connect()
    other.data_received(b"GET /" + b"x" * 993)
    await turns()
    gate.data_received(b"0\r\n\r\n")
    await turns()
    assert (transport.statuses, refused.statuses) == ([200], [429])


async def test_a_client_that_sends_no_more_is_disconnected(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.eof_received()
    assert transport.is_closing()


@pytest.mark.parametrize("rest", [b"GET /", GET % b""])
@pytest.mark.parametrize("hops", range(4))
async def test_what_is_given_up_around_the_end_of_an_answer_is_closed(
    server: GatedServer, hops: int, rest: bytes
) -> None:
    """In whatever turn: the library then takes a request, waits for one, or does neither."""
    gate, transport = server.connect()
    gate.data_received(GET % b"wait" + rest)
    await turns()

    def give_up(turns_left: int) -> None:
        if turns_left:
            asyncio.get_running_loop().call_soon(give_up, turns_left - 1)
        else:
            gate.give_up(REFUSAL)

    give_up(hops)
    server.let.set()
    await turns()
    assert transport.is_closing()
    assert transport.statuses[0] == 200
    assert server.heads.held_bytes == 0


async def test_what_waits_behind_an_answer_that_is_given_up_gets_none(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.data_received(GET % b"wait" + GET % b"")
    await turns()
    gate.give_up(REFUSAL)
    gate.data_received(GET % b"")
    transport.unread_bytes = 100
    server.let.set()
    await turns()
    assert (transport.statuses, transport.is_closing(), server.bodies) == ([200], True, [b""])


async def test_a_refused_client_that_sends_no_body_is_given_up_at_once(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.data_received(POST % (b"refuse", 9))
    await turns()
    assert transport.statuses == [401]
    assert server.heads.held_bytes == len(POST % (b"refuse", 9))
    gate.give_up(REFUSAL)
    assert transport.aborted
    assert server.heads.held_bytes == 0


async def test_nothing_is_refused_on_a_connection_that_is_closed(server: GatedServer) -> None:
    gate, transport = server.connect()
    gate.close()
    gate.refuse(REFUSAL)
    assert (transport.written, server.refusals) == (b"", [])


@pytest.mark.parametrize(("sent", "closes"), [(b"", True), (b"GET /", False), (GET % b"", False)])
async def test_only_a_connection_on_which_nothing_came_is_soon_quiet(
    server: GatedServer, monkeypatch: pytest.MonkeyPatch, sent: bytes, closes: bool
) -> None:
    monkeypatch.setattr(gates, "SILENT_SECONDS", 0.0)
    gate, transport = server.connect()
    if sent:
        gate.data_received(sent)
        await turns()
    gate.close_if_quiet(60.0)
    assert transport.is_closing() == closes


async def test_a_connection_that_is_closed_before_its_client_has_read_makes_way(
    server: GatedServer,
) -> None:
    gate, transport = server.connect()
    gate.data_received(GET % b"")
    await turns()
    transport.unread_bytes = 100
    gate.close()
    assert transport.is_closing()
    assert not transport.aborted
    assert server.limits.close_one()
    assert transport.aborted
