"""HTTP server: uvicorn on the listening socket, and the gate that each request passes.

The gate refuses new work during a drain and counts the requests in progress, so that a drain knows
when the last one has finished. A request is in progress until its last byte is sent. The gate also
limits the size of each request's head and assigns its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from collections.abc import Generator
from typing import ClassVar, Final

import msgspec
import uvicorn
from sluice_contract import http_errors
from sluice_contract.http_errors import ANTHROPIC_PATHS, Mistake, head_too_large
from sluice_contract.http_heads import (
    HEAD_SECONDS,
    IDLE_CONNECTION_SECONDS,
    REQUEST_ID_HEADER,
    is_acceptable_request_id,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice_runtime.errors import InvalidConfigError, UnavailableError
from sluice_runtime.server.failures import MistakenError, error_response

SERVER_PORT: Final = "server.port"
_BACKLOG: Final = 2048
_LEAVE_SECONDS: Final = 2
"""How long connections may take to close once no request is in progress."""


_WORK_PATHS: Final = frozenset(
    {
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate", *ANTHROPIC_PATHS,
        "/tokenize", "/detokenize",
    }
)  # fmt: skip


def listen(host: str, port: int, key: str = SERVER_PORT) -> socket.socket:
    """A bound, listening socket. `key`: the configuration's field with the port, for the error.

    Raises:
        InvalidConfigError: this process cannot listen on the address.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE and key == SERVER_PORT
        hint = f" (add --port {port + 1}; to make serve: PORT={port + 1})" if is_taken else ""
        raise InvalidConfigError(
            f"server.host, {key}: cannot listen on {host}:{port}: {error.strerror or error}; "
            f"allowed: a free address of this machine{hint}"
        ) from None
    # Connections inherit TCP_NODELAY from the listener. Some event loops do not set it themselves,
    # and without it an answer whose head and body are two writes waits 40 ms for the client's
    # delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL for clients, with the listener's actual port."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which also answers bytes that are not HTTP with OpenAI's error JSON, and
    closes a connection whose request head does not arrive in time."""

    head_seconds: ClassVar[float] = HEAD_SECONDS
    _head_timer: asyncio.TimerHandle | None = None
    """Runs from the start of a connection or of a request until the request's head is complete."""
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
        """The head did not arrive in time: closes the connection, with an error if part of a head
        came. A client that sent nothing may merely keep the connection for later, and gets no
        error."""
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # the next head comes while an answer is sent
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


class Gate:
    """Admits requests until `close`; afterwards it refuses new ones, and requests in progress may
    finish."""

    def __init__(self) -> None:
        self.closed = False
        self.in_progress = 0
        """Requests in progress."""
        self._changed = asyncio.Condition()

    def close(self) -> None:
        """Refuses new work from now on."""
        self.closed = True

    async def emptied(self) -> None:
        """Waits until no request is in progress."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.in_progress == 0)

    async def enter(self) -> None:
        """Counts a request that begins.

        Raises:
            UnavailableError: the gate is closed.
        """
        if self.closed:
            raise UnavailableError("the server drains; ask another replica")
        self.in_progress += 1

    async def leave(self) -> None:
        """Counts a request that has ended."""
        async with self._changed:
            self.in_progress -= 1
            self._changed.notify_all()


class GateMiddleware:
    """Lets requests for work through the gate, and gives every response an x-request-id."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        if refusal := _head_refusal(scope):
            await refusal(scope, receive, send_with_id)
        elif scope["path"] in _WORK_PATHS:
            await self._work(scope, receive, send_with_id)
        else:
            await self._app(scope, receive, send_with_id)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._gate.enter()
        except UnavailableError as error:
            response = error_response(error, scope["path"])
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            await self._gate.leave()


def _head_refusal(scope: Scope) -> Response | None:
    """The refusal of a request whose head is too large; None for other requests."""
    query = scope["query_string"]
    target_bytes = len(scope["raw_path"]) + (len(query) + 1 if query else 0)
    sizes = ((name.decode("latin-1"), len(name) + len(value)) for name, value in scope["headers"])
    mistake = head_too_large(target_bytes, sizes)
    return error_response(MistakenError(mistake), scope["path"]) if mistake else None


def _request_id(headers: Headers) -> str:
    """The client's id if it is safe in headers and logs, else a new one."""
    request_id = headers.get(REQUEST_ID_HEADER, "")
    return request_id if is_acceptable_request_id(request_id) else secrets.token_hex(16)
