"""Accepts clients' connections, each of them aiohttp's behind a gate, and waits for their end when
the router leaves.

aiohttp tells the gate when a request begins and when its answer ends, and gives it what is no HTTP.
Only public names are used for that, which all releases from 3.12 on have.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from sluice_contract import http_errors
from sluice_contract.http_heads import MAX_HEADER_BYTES, MAX_HEADERS

from sluice_router.errors import BadRequestError
from sluice_router.exchange import begin_exchange, exchange_of
from sluice_router.gate import ConnectionLimits, Gate, Written

SOCKET_BUFFER_BYTES: Final = 65_536
"""Socket buffer of each direction of a connection. The kernel would let it grow to megabytes, which
count as the container's memory, and would hand over as much at once."""
CHECK_SECONDS: Final = 0.05
"""Between two looks for connections that can be closed, while the router leaves."""
BACKLOG: Final = 1024
IDLE_SECONDS: Final = 620.0
"""How long a connection may wait for its next request: longer than load balancers keep one (600 s
at most), so that they close it first and send no request on a connection that is just closing."""
LIBRARY_HEADERS: Final = 4 * MAX_HEADERS
LIBRARY_HEADER_BYTES: Final = 8 * MAX_HEADER_BYTES
"""Limits of a head at which aiohttp stops parsing: many short headers make many objects."""


class ClientTransport:
    """The client's transport as aiohttp sees it: the gate decides when it is read and closed."""

    __slots__ = ("_gate", "_transport", "is_closing", "write")

    def __init__(self, gate: Gate, transport: asyncio.Transport) -> None:
        self._gate = gate
        self._transport = transport
        self.write = transport.write
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close it once the client has read everything."""
        self._gate.close()

    def pause_reading(self) -> None:
        """Read no more of a body."""
        self._gate.set_library_reads(False)

    def resume_reading(self) -> None:
        """Read on."""
        self._gate.set_library_reads(True)


class ServerProtocol(web.RequestHandler):
    """aiohttp's protocol of one connection, behind a gate."""

    __slots__ = ("gate",)

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
        self.gate = Gate(self, limits, loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        shown = ClientTransport(self.gate, cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, shown))

    def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, Written]:
        """Send what is left of the answer; the connection then waits for the next request."""
        writing = super().finish_response(request, resp, start_time)
        return self.gate.finish(writing, exchange_of(request).head_bytes)

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
            is_long = isinstance(exc, LineTooLong) or "Too many headers" in exc.message
            mistake = http_errors.head_too_long() if is_long else http_errors.not_http()
            self.gate.refuse(BadRequestError(mistake))
            exc = ConnectionAbortedError("not a request")
        if isinstance(exc, ConnectionError):
            raise exc
        return super().handle_error(request, status, exc, message)


def begin_request(make: Callable[..., web.BaseRequest], *parts: Any) -> web.BaseRequest:
    """The request that aiohttp's factory `make` makes; the gate of its connection is told."""
    request = make(*parts)
    head_bytes = size_of(request)
    begin_exchange(request, head_bytes)
    cast(ServerProtocol, request.protocol).gate.began(request, head_bytes)
    return request


def size_of(request: web.BaseRequest) -> int:
    """Bytes of a request's head; blanks around its values are not known."""
    size = len(request.method) + len(request.raw_path.encode("utf-8", "surrogateescape"))
    size += len("  HTTP/1.1\r\n\r\n")
    for name, value in request.raw_headers:
        size += len(name) + len(value) + len(": \r\n")
    return size


class Listener:
    """Accepts connections for one application."""

    def __init__(self, runner: web.AppRunner, limits: ConnectionLimits) -> None:
        """`runner` is set up."""
        assert runner.server is not None
        self._limits = limits
        self._server = runner.server
        self._server.request_factory = partial(begin_request, runner.server.request_factory)
        self._sockets: list[asyncio.Server] = []

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Accept connections at each of `hosts`; returns the port, chosen if `port` is 0.

        Raises:
            OSError: an address cannot be bound.
        """
        loop = asyncio.get_running_loop()

        def gate() -> Gate:
            return ServerProtocol(self._server, self._limits, loop).gate

        for host in hosts:
            opened = _open_socket(host, port)
            self._sockets.append(await loop.create_server(gate, sock=opened, backlog=BACKLOG))
            port = opened.getsockname()[1]
        return port

    def close(self) -> None:
        """Accept no more."""
        for accepting in self._sockets:
            accepting.close()

    async def all_closed(self, quiet_seconds: float, is_idle: Callable[[], bool]) -> None:
        """Return when no connection is left; close those that were quiet for `quiet_seconds`.

        Once no request is served (`is_idle`), accept no more: clients could else hold up the end
        with connections on which nothing comes.
        """
        while self._limits.connections:
            if is_idle():
                self.close()
            for gate in list(self._limits.connections):
                gate.close_if_quiet(quiet_seconds)
            await asyncio.sleep(CHECK_SECONDS)


def _open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; its connections inherit the options."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    opened = socket.create_server((host, port), family=family)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return opened
