"""Requests and replies of backend TCP. Knows no memory.

A request is a header (magic, the server's token, number of ranges), then address and length of each
range. The reply is one byte of status and, after OK, the bytes of all ranges in order.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

TOKEN_BYTES: Final = 16
MAGIC: Final = b"SLKV1"
HEADER: Final = struct.Struct(f"!{len(MAGIC)}s{TOKEN_BYTES}sI")
RANGE: Final = struct.Struct("!QQ")
BLOCK_BYTES: Final = 8 << 20
"""Most bytes that are sent or received between two checks of the clock."""

Range = tuple[int, int]
"""(address, length in bytes)."""


class ReplyStatus(IntEnum):
    """First byte of a reply. The connection is used again only after OK."""

    OK = 0
    OTHER_EPOCH = 1
    """The token is of another process that had this address."""
    NOT_REGISTERED = 2
    MALFORMED = 3


class MalformedError(ValueError):
    """A request that no client of ours sends."""


def pack_request(token: bytes, ranges: Sequence[Range]) -> bytes:
    header = HEADER.pack(MAGIC, token, len(ranges))
    return header + b"".join(RANGE.pack(*each) for each in ranges)


def unpack_header(header: bytes, max_ranges: int) -> tuple[bytes, int]:
    """(token, number of ranges)."""
    magic, token, count = HEADER.unpack(header)
    if magic != MAGIC or not 0 < count <= max_ranges:
        raise MalformedError(f"magic {magic!r}, {count} ranges; allowed: 1 to {max_ranges}")
    return token, count


def unpack_ranges(body: bytes) -> list[Range]:
    return list(RANGE.iter_unpack(body))


def receive_into(connection: socket.socket, view: memoryview, deadline_seconds: float) -> None:
    """Fills `view` by `deadline_seconds` on the monotonic clock.

    Raises:
        TimeoutError: not all bytes arrived in time.
        ConnectionError: the peer closed the connection.
    """
    while view:
        connection.settimeout(remaining(deadline_seconds))
        if (count := connection.recv_into(view[:BLOCK_BYTES])) == 0:
            raise ConnectionResetError("closed by the peer")
        view = view[count:]


def receive(connection: socket.socket, count: int, deadline_seconds: float) -> bytes:
    buffer = bytearray(count)
    receive_into(connection, memoryview(buffer), deadline_seconds)
    return bytes(buffer)


def send(connection: socket.socket, data: memoryview, stall_seconds: float) -> None:
    """Sends all of `data`, provided that the peer accepts each block within `stall_seconds`."""
    connection.settimeout(stall_seconds)
    for start in range(0, len(data), BLOCK_BYTES):
        connection.sendall(data[start : start + BLOCK_BYTES])


def remaining(deadline_seconds: float) -> float:
    """Seconds left until `deadline_seconds`.

    Raises:
        TimeoutError: no time is left.
    """
    if (left := deadline_seconds - time.monotonic()) <= 0:
        raise TimeoutError("the deadline is over")
    return left
