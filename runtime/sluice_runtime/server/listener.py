"""The HTTP listener and uvicorn on top of it. Knows no route."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from typing import Final

import uvicorn
from sluice_contract.engine_http import IDLE_CONNECTION_SECONDS
from starlette.types import ASGIApp

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
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InvalidConfigError(
            f"server.host, server.port: cannot listen on {host}:{port}: {error.strerror or error}; "
            "allowed: a free address of this machine"
        ) from None


def url_of(listener: socket.socket) -> str:
    """Where clients find it, with the port that was really chosen."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the API process has its own."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
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
