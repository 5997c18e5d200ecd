"""Accepts clients' connections, and waits for their end when the router leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aiohttp import web

from sluice_router.gate import ConnectionLimits, Gate
from sluice_router.server_protocol import ServerProtocol, begin_request

SOCKET_BUFFER_BYTES: Final = 65_536
"""Socket buffer of each direction of a connection. The kernel would let it grow to megabytes, which
count as the container's memory, and would hand over as much at once."""
CHECK_SECONDS: Final = 0.05
"""Between two looks for connections that can be closed, while the router leaves."""
BACKLOG: Final = 1024


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
            OSError: an address cannot be had.
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
