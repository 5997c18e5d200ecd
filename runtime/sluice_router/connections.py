"""Clients' connections: how many there may be, how long a request's head may take, and how they are
closed when the router leaves.

A client may send its next request at any moment on a connection that it was not told to give up.
So a connection is closed only after an answer that said `Connection: close`, or after it was quiet
for a while. Knows no routes.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp import web
from sluice_contract import http_errors
from sluice_contract.http_errors import HEAD_SECONDS, MAX_HEADER_BYTES, MAX_HEADERS

from sluice_router.errors import BadRequestError, OverloadedError, RouterError
from sluice_router.memory import ByteBudget

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
LIBRARY_HEADERS: Final = 4 * MAX_HEADERS
LIBRARY_HEADER_BYTES: Final = 8 * MAX_HEADER_BYTES
"""Where the HTTP library stops reading, in its own words; below, the refusal is ours."""


@dataclass(frozen=True)
class ConnectionLimits:
    """What all connections share."""

    max_connections: int
    budget: ByteBudget
    """Holds the heads that are not complete yet."""
    on_refusal: Callable[[int], None]
    """Called with the status of each answer that is made before there is a request."""


class Connection(web.RequestHandler):
    """aiohttp's, except that a request's head has a time limit and counts against the byte budget,
    and that it knows since when it has waited for a request."""

    __slots__ = ("_head_bytes", "_head_timer", "_limits", "_quiet_since", "_waits_for_request")

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
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(transport)
        assert self._manager is not None
        if len(self._manager.connections) > self._limits.max_connections:
            limit = self._limits.max_connections
            self._refuse(
                OverloadedError(f"the router has {limit} connections (server.maxConnections)")
            )
        else:
            self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._quiet_since = self._loop.time()
        if not self._waits_for_request or self._force_close:
            super().data_received(data)
            return
        requests = self._request_count
        super().data_received(data)
        if self._request_count > requests:
            self._waits_for_request = False
            self._end_head()
        elif data:
            self._hold_head(len(data))

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send what is left of the answer; the connection then waits for the next request."""
        finished = await super().finish_response(request, resp, start_time)
        if not request.content.is_eof():
            await _discard_rest(request.content)
        self._waits_for_request = not self._messages
        self._quiet_since = self._loop.time()
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A client that has left is no error: its request is counted and logged where it ended."""
        if isinstance(exc, ConnectionError):
            raise exc
        return super().handle_error(request, status, exc, message)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over."""
        self._end_head()
        super().connection_lost(exc)

    def close_if_quiet(self, since: float) -> None:
        """Close it if it has waited for a request since then and none is on its way in."""
        if self._waits_for_request and self._quiet_since <= since and not self._has_unread_bytes():
            self.force_close()

    def _has_unread_bytes(self) -> bool:
        """Whether the kernel has bytes of the client that this process has not read yet."""
        if self.transport is None:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _hold_head(self, count: int) -> None:
        """`count` more bytes of a head that is not complete."""
        try:
            self._limits.budget.take(count, self._head_bytes + count)
        except OverloadedError as error:
            self._refuse(error)
        else:
            self._head_bytes += count
            self._start_head_timer()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._limits.budget.give_back(self._head_bytes)
        self._head_bytes = 0

    def _head_is_late(self) -> None:
        """A client that sent nothing at all gets no answer: it may keep connections for later."""
        if self._head_bytes:
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
    except (TimeoutError, RuntimeError, OSError, aiohttp.ClientError):
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
