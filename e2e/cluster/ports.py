"""Free ports, for programs that get their port as a setting."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_BELOW_THOSE_OF_CLIENTS: Final = range(18_000, 30_000)


def free_ports(count: int, address: str = LOOPBACK) -> list[int]:
    """Different TCP ports on which nobody listens. The kernel never gives these ports to clients,
    so they stay free until a program binds them, and for another bind after a restart."""
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(_BELOW_THOSE_OF_CLIENTS)
        with socket.socket() as tried, suppress(OSError):
            tried.bind((address, port))
            found.add(port)
    return list(found)


def free_port() -> int:
    """One free TCP port; see `free_ports`."""
    return free_ports(1)[0]
