"""aiohttp's side of a client's connection: it tells the gate when a request begins and when its
answer ends, and gives it what is no HTTP.

Only public names of aiohttp are used, which all its releases from 3.12 on have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from sluice_contract import http_errors
from sluice_contract.http_heads import MAX_HEADER_BYTES, MAX_HEADERS

from sluice_router.errors import BadRequestError
from sluice_router.exchange import begin_exchange, exchange_of
from sluice_router.gate import ConnectionLimits, Gate, Written

IDLE_SECONDS: Final = 620.0
"""How long a connection may wait for its next request: longer than load balancers keep one (600 s
at most), so that they close it first and send no request on a connection that is just closing."""
LIBRARY_HEADERS: Final = 4 * MAX_HEADERS
LIBRARY_HEADER_BYTES: Final = 8 * MAX_HEADER_BYTES
"""Where aiohttp stops parsing a head: it would make many objects of few bytes."""


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
