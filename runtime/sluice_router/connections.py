"""Clients' connections: how many there may be, what each may hold and for how long, and how they
are closed when the router leaves.

A client may send its next request at any moment on a connection that it was not told to give up.
So a connection is closed only after an answer that said `Connection: close`, or after it was quiet
for a while. Knows no routes.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from sluice_contract import http_errors
from sluice_contract.http_errors import (
    HEAD_SECONDS,
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
)

from sluice_router.errors import BadRequestError, OverloadedError, RouterError
from sluice_router.limits import ByteBudget

CHECK_SECONDS: Final = 0.05
"""Between two looks for connections that can be closed, while the router leaves."""
BACKLOG: Final = 1024
SOCKET_BUFFER_BYTES: Final = 65_536
"""Of each direction of a connection. The kernel would let a buffer grow to megabytes, which count
as the container's memory, and would hand over as much at once."""
DISCARD_SECONDS: Final = 10.0
"""How long a client that was refused may go on sending its body."""
IDLE_SECONDS: Final = 620.0
"""How long a connection may wait for its next request: longer than load balancers keep one (600 s
at most), so that they close it first and send no request on a connection that is just closing."""
WRITE_SECONDS = 45.0
"""A client that reads nothing for this long is disconnected. Engines wait longer (60 s) for us."""
LIBRARY_HEADERS: Final = 4 * MAX_HEADERS
LIBRARY_HEADER_BYTES: Final = 8 * MAX_HEADER_BYTES
"""Where the HTTP library stops parsing a head: it would make many objects of few bytes."""
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True)
class ConnectionLimits:
    """What all connections share."""

    max_connections: int
    budget: ByteBudget
    """Holds what came on a connection and is no body."""
    on_refusal: Callable[[int], None]
    """Called with the status of each answer that is made before there is a request."""
    waiting: dict[Connection, None] = field(default_factory=dict)
    """Connections that wait for a request; first the one that has waited longest."""
    answered: dict[Connection, asyncio.Transport] = field(default_factory=dict)
    """Connections that only stay until their client has read an answer, or sent a body's rest."""


class Connection(web.RequestHandler):
    """aiohttp's, except that bytes and time are bounded in every state.

    All bytes that are no body's count against the byte budget. What comes while a whole request is
    answered waits for the end of that; after `SOCKET_BUFFER_BYTES` of it nothing more is read.
    """

    __slots__ = (
        "_behind", "_body", "_close_timer", "_counted", "_head_bytes", "_head_timer",
        "_last_fed", "_limits", "_loose_bytes", "_quiet_since", "_waits_for_request",
    )  # fmt: skip

    def __init__(
        self, server: web.Server, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp takes it for "no log"
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=0,
            max_headers=LIBRARY_HEADERS,
            max_line_size=LIBRARY_HEADER_BYTES,
            max_field_size=LIBRARY_HEADER_BYTES,
        )
        self._limits = limits
        self._waits_for_request = True
        self._quiet_since = loop.time()
        self._body: aiohttp.StreamReader = aiohttp.streams.EMPTY_PAYLOAD
        """Of the latest request."""
        self._head_bytes = 0
        """Of requests that are complete and not answered yet."""
        self._loose_bytes = 0
        """Behind them, or behind the latest piece of a body: of a head, or a body's trailers."""
        self._last_fed = b""
        """The last bytes that aiohttp got."""
        self._behind = b""
        """What came while a request was answered; aiohttp has not seen it."""
        self._counted = 0
        """Bytes that the budget holds for this connection."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(transport)
        assert self._manager is not None
        limit = self._limits.max_connections
        if len(self._manager.connections) > limit and not self._make_room():
            self._refuse(
                OverloadedError(f"the router has {limit} connections (server.maxConnections)")
            )
        else:
            self._limits.waiting[self] = None
            self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client; none, when aiohttp goes on with what it has."""
        if data:
            self._quiet_since = self._loop.time()
        if self._force_close or self._close:
            return
        if data and not self._takes_bytes():
            self._put_behind(data)
        else:
            self._feed(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send what is left of the answer; the connection then waits for the next request."""
        if self.transport is not None:
            self._limits.answered[self] = self.transport
        try:
            finished = await super().finish_response(request, resp, start_time)
            if not request.content.is_eof():
                await _discard_rest(request.content)
            if self._messages or self._behind:
                await self._flush()
        finally:
            if not self._force_close:
                self._limits.answered.pop(self, None)
        self._quiet_since = self._loop.time()
        if self._messages:
            self._body = self._messages[-1][1]
        elif not self._force_close:
            self._wait_for_request()
        return finished

    async def start(self) -> None:
        """Answer requests until the connection is closed."""
        await super().start()
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A client that has left is no error: its request is counted and logged where it ended.
        What is no request is answered here, and only counted."""
        if isinstance(exc, HttpProcessingError):
            self._refuse(BadRequestError(_mistake(exc)))
            exc = ConnectionAbortedError("not a request")
        if isinstance(exc, ConnectionError):
            raise exc
        return super().handle_error(request, status, exc, message)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over."""
        super().connection_lost(exc)
        self._limits.answered.pop(self, None)
        self._stop_head_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._behind = b""
        self._head_bytes = self._loose_bytes = 0
        self._count()

    def close_if_quiet(self, since: float) -> None:
        """Close it if it has waited for a request since then and none is on its way in."""
        if self._waits_for_request and self._quiet_since <= since and not self._has_unread_bytes():
            self.force_close()

    def force_close(self) -> None:
        """Close it once the client has what was written, or after a while without."""
        transport = self.transport
        self._limits.waiting.pop(self, None)
        super().force_close()
        if transport is not None and transport.get_write_buffer_size():
            self._limits.answered[self] = transport
            self._close_timer = self._loop.call_later(WRITE_SECONDS, transport.abort)

    async def _drain_helper(self) -> None:
        """Where every write waits for a client that does not read.

        Raises:
            ConnectionResetError: it reads nothing.
        """
        transport = self.transport
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await super()._drain_helper()
        except TimeoutError:
            if transport is not None:
                transport.abort()  # closing it would wait for the client
            message = f"the client read nothing for {WRITE_SECONDS:g} seconds"
            raise ConnectionResetError(message) from None

    async def _flush(self) -> None:
        """Wait until the kernel has the answer: answers that nobody reads would pile up."""
        transport = self.transport
        if transport is not None and transport.get_write_buffer_size():
            transport.set_write_buffer_limits(high=0)
            try:
                await self._drain_helper()
            finally:
                transport.set_write_buffer_limits()

    def _takes_bytes(self) -> bool:
        """Whether what comes now belongs to the request that is waited for or read."""
        return self._waits_for_request or not (self._messages or self._body.is_eof())

    def _put_behind(self, data: bytes) -> None:
        """Reading goes on for a little, for that is how a client that leaves is noticed."""
        self._behind += data
        self._buffer_paused = True  # aiohttp then asks when it has taken a request
        if len(self._behind) >= SOCKET_BUFFER_BYTES:
            self._pause_transport_reading()
        self._count()

    def _resume_reading_if_drained(self) -> None:
        """aiohttp calls it when it has taken a request from those that wait."""
        if not self._behind:
            super()._resume_reading_if_drained()
        elif self._takes_bytes():
            self._feed_behind()

    def _feed_behind(self) -> None:
        data, self._behind = self._behind, b""
        self._feed(data)
        if not self._close:
            super()._resume_reading_if_drained()

    def _feed(self, data: bytes) -> None:
        """Give aiohttp what came, and count what of it is no body's."""
        requests, body, body_bytes = self._request_count, self._body, self._body.total_bytes
        super().data_received(data)
        came = self._request_count - requests
        grown = body.total_bytes - body_bytes
        if came:
            self._note_requests(data, came)
        elif grown and data:
            self._loose_bytes = max(len(data) - grown, 0)
        else:
            self._loose_bytes += len(data) - grown
        self._count(whole_request=came > 0)
        if data:
            long = len(data) >= len(_HEAD_END)
            self._last_fed = (data if long else self._last_fed + data)[-len(_HEAD_END) :]
            if not (came or grown):
                self._judge_head()

    def _note_requests(self, data: bytes, came: int) -> None:
        """So many requests are complete but for the body of the last."""
        self._body = self._messages[-1][1]
        is_alone = came == 1 and self._waits_for_request
        body_bytes = self._body.total_bytes if is_alone else 0
        rest = self._rest(data, body_bytes, is_alone=is_alone)
        self._head_bytes += self._loose_bytes + len(data) - body_bytes - rest
        self._loose_bytes = rest
        self._waits_for_request = False
        self._stop_head_timer()
        self._limits.waiting.pop(self, None)

    def _rest(self, data: bytes, body_bytes: int, *, is_alone: bool) -> int:
        """How many bytes at the end of what came may be of a further head: none, if it ends as a
        head does; of one request it is known; else it may be all."""
        parses_all = len(self._messages) < self._max_msg_queue_size
        ends = (data or self._last_fed).endswith(_HEAD_END)
        if parses_all and (ends or not self._body.is_eof()):
            return 0
        if not data:
            return self._loose_bytes
        head = 0
        if is_alone:
            begun = self._last_fed[1:] if self._loose_bytes else b""
            head = max(0, (begun + data).find(_HEAD_END) + len(_HEAD_END) - len(begun))
        return max(0, len(data) - body_bytes - head)

    def _wait_for_request(self) -> None:
        self._waits_for_request = True
        self._head_bytes = 0
        self._limits.waiting[self] = None
        if self._behind:
            self._feed_behind()
        self._count()
        if self._loose_bytes and self._waits_for_request:
            self._start_head_timer()

    def _judge_head(self) -> None:
        """More of a head came, or of trailers, which does not end it."""
        if self._force_close or self._close:
            return
        if self._loose_bytes > MAX_HEAD_BYTES:
            self._give_up(BadRequestError(http_errors.head_too_long()))
        elif self._waits_for_request and self._loose_bytes:
            self._limits.waiting.pop(self, None)
            self._limits.waiting[self] = None
            self._start_head_timer()

    def _count(self, *, whole_request: bool = False) -> None:
        """Count all that is held; what does not fit ends the connection, unless it completes a
        request: that is refused as others are."""
        holds = self._head_bytes + self._loose_bytes + len(self._behind)
        more, budget = holds - self._counted, self._limits.budget
        try:
            if whole_request or more < 0:
                budget.held_bytes += more
            else:
                budget.take(more, holds)
            self._counted = holds
        except OverloadedError as error:
            self._give_up(error)

    def _give_up(self, error: RouterError) -> None:
        """Refuse what comes in; an answer to an earlier request is finished before the end."""
        if self._waits_for_request:
            self._refuse(error)
            return
        self._behind = b""
        if not self._body.is_eof():
            self._body.set_exception(error)
        self.close()

    def _has_unread_bytes(self) -> bool:
        """Whether the kernel has bytes of the client that this process has not read yet."""
        if self.transport is None:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _make_room(self) -> bool:
        """Close another connection; False where all have requests that are not answered."""
        if (answered := next(iter(self._limits.answered), None)) is not None:
            self._limits.answered.pop(answered).abort()  # closing would wait for the client
            return True
        waiting = (one for one in self._limits.waiting if not one._has_unread_bytes())
        if (longest := next(waiting, None)) is None:
            return False
        longest.force_close()
        return True

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        """A client that sent nothing at all gets no answer: it may keep connections for later."""
        if self._loose_bytes:
            self._refuse(BadRequestError(http_errors.head_too_late(HEAD_SECONDS)))
        else:
            self.force_close()

    def _refuse(self, error: RouterError) -> None:
        """Answer without a request, and close."""
        self._limits.on_refusal(error.status)
        retry = error.retry_after_seconds
        headers = "" if retry is None else f"retry-after: {retry}\r\n"
        if self.transport is not None:
            answer = http_errors.closing_response(error.status, error.body, headers)
            self.transport.write(answer)
        self.force_close()


def _mistake(error: HttpProcessingError) -> http_errors.Mistake:
    """What aiohttp's parser refused."""
    if isinstance(error, LineTooLong) or "Too many headers" in error.message:
        return http_errors.head_too_long()
    return http_errors.not_http()


def _open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; its connections inherit the options."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    opened = socket.create_server((host, port), family=family)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return opened


async def _discard_rest(body: aiohttp.StreamReader) -> None:
    """Read what a client still sends after it was refused: it would not see the answer otherwise.

    When it goes on for too long, aiohttp closes the connection.
    """
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while not body.is_eof():
                await body.readany()
    except (TimeoutError, RuntimeError, OSError, aiohttp.ClientError, RouterError):
        return  # RuntimeError: the connection is closed


class Listener:
    """Accepts connections for one application."""

    def __init__(self, runner: web.AppRunner, limits: ConnectionLimits) -> None:
        """`runner` is set up."""
        assert runner.server is not None
        self._limits = limits
        self._server = runner.server
        self._sockets: list[asyncio.Server] = []

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Accept connections at each of `hosts`; returns the port, chosen if `port` is 0.

        Raises:
            OSError: an address cannot be had.
        """
        loop = asyncio.get_running_loop()
        for host in hosts:
            opened = _open_socket(host, port)
            self._sockets.append(
                await loop.create_server(self._connection, sock=opened, backlog=BACKLOG)
            )
            port = opened.getsockname()[1]
        return port

    def _connection(self) -> Connection:
        return Connection(self._server, self._limits, asyncio.get_running_loop())

    def close(self) -> None:
        """Accept no more."""
        for accepting in self._sockets:
            accepting.close()

    async def all_closed(self, quiet_seconds: float) -> None:
        """Return when no connection is left; close those that were quiet for `quiet_seconds`."""
        loop = asyncio.get_running_loop()
        while connections := self._server.connections:
            for connection in connections:
                assert isinstance(connection, Connection)
                connection.close_if_quiet(loop.time() - quiet_seconds)
            await asyncio.sleep(CHECK_SECONDS)
