"""The HTTP listener and uvicorn on top of it. Knows no route."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import ClassVar, Final

import msgspec
import uvicorn
from sluice_contract import http_errors
from sluice_contract.http_errors import HEAD_SECONDS, IDLE_CONNECTION_SECONDS, Mistake
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice_runtime.errors import InvalidConfigError

_BACKLOG: Final = 2048
_LEAVE_SECONDS: Final = 2
"""How long connections may take to close once no request is in progress."""


def listen(host: str, port: int, key: str = "server.port") -> socket.socket:
    """A bound, listening socket; `key`: what says the port.

    Raises:
        InvalidConfigError: the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidConfigError(
            f"server.host, {key}: cannot listen on {host}:{port}: {error.strerror or error}; "
            "allowed: a free address of this machine"
        ) from None
    # Connections inherit it. Not every event loop sets it, and without it an answer whose head
    # and body are two writes waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL for clients, with the port that was chosen."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but it answers bytes that are no HTTP request with OpenAI's error JSON,
    and closes a connection whose request head is not complete in time."""

    head_seconds: ClassVar[float] = HEAD_SECONDS
    _head_timer: asyncio.TimerHandle | None = None
    """Set from a connection's start, or a request's, until the head is complete."""
    _head_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        self._head_begun = True
        if self.cycle is not None and self.cycle.response_complete and not data.strip(b"\r\n"):
            self._await_head()  # no request begins with it, and the idle connection's timer is off
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._forget_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        """Sends nothing on a connection that sent nothing: clients keep connections for later."""
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # of a request behind another, whose answer is still under way
        elif self._head_begun:
            self._end_with(http_errors.head_too_late(self.head_seconds))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._end_with(http_errors.not_http())

    def _end_with(self, mistake: Mistake) -> None:
        error = http_errors.error_object(mistake.message, http_errors.INVALID_REQUEST, mistake.code)
        body = msgspec.json.encode(error)
        self.transport.write(http_errors.closing_response(mistake.status, body))
        self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the API process has its own."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS,
                timeout_graceful_shutdown=_LEAVE_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
