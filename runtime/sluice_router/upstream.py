"""Connections to engines and to the API server: how they are opened, kept and closed.

Streams have no time limit of their own, so the kernel detects a peer that vanished: by keep-alive
probes while nothing is in flight, by a limit on unacknowledged data otherwise.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import aiohttp

KEEPALIVE_IDLE_SECONDS: Final = 10
KEEPALIVE_INTERVAL_SECONDS: Final = 5
KEEPALIVE_PROBES: Final = 3
UNACKNOWLEDGED_MILLISECONDS: Final = 25_000
IDLE_SECONDS: Final = 4.0
"""Well below `engine_http.IDLE_CONNECTION_SECONDS`, after which engines close a connection: no
request must be sent on one that is just being closed."""


def open_session(connect_timeout_seconds: float) -> aiohttp.ClientSession:
    """A pool of connections without a limit on their number or on how long an answer takes."""
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_open_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_seconds),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent",),
    )


async def read_at_most(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """The body, or its first `limit_bytes`."""
    body = bytearray()
    while len(body) < limit_bytes and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body[:limit_bytes])


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SECONDS,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MILLISECONDS,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # each system has some of them
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened
