"""Ports for programs that are told theirs."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_BELOW_THOSE_OF_CLIENTS: Final = range(18_000, 30_000)


def free_ports(count: int, address: str = LOOPBACK) -> list[int]:
    """Different TCP ports on which nobody listens. The kernel gives none of them to clients, so
    that they are still free when a program binds them, and when it does so again after a restart.
    """
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(_BELOW_THOSE_OF_CLIENTS)
        with socket.socket() as tried, suppress(OSError):
            tried.bind((address, port))
            found.add(port)
    return list(found)


def free_port() -> int:
    """One of these."""
    return free_ports(1)[0]
