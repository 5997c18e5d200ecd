"""Accepts clients' connections, and waits for their end when the router leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from aiohttp import web

from sluice_router.connections import SOCKET_BUFFER_BYTES, Connection, ConnectionLimits

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
        self._sockets: list[asyncio.Server] = []

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Accept connections at each of `hosts`; returns the port, chosen if `port` is 0.

        Raises:
            OSError: an address cannot be had.
        """
        loop = asyncio.get_running_loop()
        for host in hosts:
            opened = _open_socket(host, port)
            connection = partial(Connection, self._server, self._limits, loop)
            self._sockets.append(await loop.create_server(connection, sock=opened, backlog=BACKLOG))
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
        while connections := self._server.connections:
            if is_idle():
                self.close()
            for connection in connections:
                assert isinstance(connection, Connection)
                connection.close_if_quiet(quiet_seconds)
            await asyncio.sleep(CHECK_SECONDS)


def _open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; its connections inherit the options."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    opened = socket.create_server((host, port), family=family)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return opened
