"""The HTTP listener and uvicorn on top of it. Knows no route."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from typing import Final

import msgspec
import uvicorn
from sluice_contract import http_errors
from sluice_contract.engine_http import IDLE_CONNECTION_SECONDS
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice_runtime.errors import InvalidConfigError

_BACKLOG: Final = 2048
_LEAVE_SECONDS: Final = 2
"""How long connections may take to close once nothing is inside any more."""


def listen(host: str, port: int) -> socket.socket:
    """A bound and listening socket.

    Raises:
        InvalidConfigError: the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidConfigError(
            f"server.host, server.port: cannot listen on {host}:{port}: {error.strerror or error}; "
            "allowed: a free address of this machine"
        ) from None
    # Connections inherit it. Not every event loop sets it, and without it an answer whose head
    # and body are two writes waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it, with the port that was really chosen."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, except that bytes that are no HTTP request also get OpenAI's error JSON."""

    def send_400_response(self, msg: str) -> None:
        mistake = http_errors.not_http()
        error = http_errors.error_object(mistake.message, http_errors.INVALID_REQUEST, mistake.code)
        body = msgspec.json.encode(error)
        head = (
            f"HTTP/1.1 {mistake.status} Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
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
