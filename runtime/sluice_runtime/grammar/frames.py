"""Frames between engine and compile process: four bytes of length, then so many bytes.

Knows pipes and deadlines, not what is in a frame.
"""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Final

MOST_BYTES: Final = 64 << 20
"""A compiled grammar that is larger would take the engine's memory, and time to read."""

DONE: Final = b"+"
FAILED: Final = b"-"
"""First byte of what the compile process writes: a result, or one line that says what is wrong."""

_HEAD: Final = struct.Struct(">I")
_PART_BYTES: Final = 1 << 16


class BrokenFrameError(Exception):
    """The other side has gone, or sent what is no frame."""


def write_frame(descriptor: int, payload: bytes) -> None:
    """Blocks until the other side has taken all of it.

    Raises:
        BrokenFrameError: nobody reads.
    """
    left = memoryview(_HEAD.pack(len(payload)) + payload)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except BrokenPipeError:
        raise BrokenFrameError from None


def read_frame(descriptor: int, seconds: float | None = None) -> bytes:
    """The next frame.

    Raises:
        BrokenFrameError: there is none, and will be none.
        TimeoutError: it was not all there within `seconds`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _HEAD.unpack(_read(descriptor, _HEAD.size, deadline))
    if length > MOST_BYTES:
        raise BrokenFrameError(f"a frame of {length} bytes")
    return _read(descriptor, length, deadline)


def _read(descriptor: int, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        _await_readable(descriptor, deadline)
        part = os.read(descriptor, min(_PART_BYTES, count - len(parts)))
        if not part:
            raise BrokenFrameError
        parts += part
    return bytes(parts)


def _await_readable(descriptor: int, deadline: float | None) -> None:
    if deadline is None:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    left_seconds = deadline - time.monotonic()
    if left_seconds <= 0 or not poll.poll(left_seconds * 1000):
        raise TimeoutError
