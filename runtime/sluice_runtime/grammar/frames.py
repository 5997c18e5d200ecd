"""Frames between the engine and grammar processes: four bytes of length, then the payload.

Knows pipes, not the content of a frame, nor what a timeout depends on.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from typing import Final

MAX_BYTES: Final = 64 << 20
"""A larger compiled grammar would take too much of the engine's memory and time."""

DONE: Final = b"+"
FAILED: Final = b"-"
TOO_LARGE: Final = b"!"
"""First byte of a compile process's reply: before a result; before a line that says what is wrong;
alone, when there was not enough memory."""

Patience = Callable[[], float]
"""How many more seconds to wait for a frame; asked again when they have passed."""

_HEAD: Final = struct.Struct(">I")
_PART_BYTES: Final = 1 << 16
_LEAST_MILLISECONDS: Final = 1


class BrokenFrameError(Exception):
    """The other side has closed the pipe."""


class LargeFrameError(Exception):
    """The other side sent a frame of more than `MAX_BYTES`."""


def write_frame(descriptor: int, payload: bytes, patience: Patience | None = None) -> None:
    """Blocks until all of it is in the pipe.

    Raises:
        BrokenFrameError: the other side has closed the pipe.
        TimeoutError: `patience` ran out before that.
    """
    left = memoryview(_HEAD.pack(len(payload)) + payload)
    most = len(left) if patience is None else select.PIPE_BUF
    try:
        while left:
            if patience is not None:
                _await(descriptor, select.POLLOUT, patience)
            left = left[os.write(descriptor, left[:most]) :]
    except BrokenPipeError:
        raise BrokenFrameError from None


def read_frame(descriptor: int, patience: Patience | None = None) -> bytes:
    """The next frame.

    Raises:
        BrokenFrameError: the pipe has been closed.
        LargeFrameError: it is too large.
        TimeoutError: `patience` ran out before all of it was there.
    """
    (length,) = _HEAD.unpack(_read(descriptor, _HEAD.size, patience))
    if length > MAX_BYTES:
        raise LargeFrameError
    return _read(descriptor, length, patience)


def _read(descriptor: int, count: int, patience: Patience | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if patience is not None:
            _await(descriptor, select.POLLIN | select.POLLHUP, patience)
        part = os.read(descriptor, min(_PART_BYTES, count - len(parts)))
        if not part:
            raise BrokenFrameError
        parts += part
    return bytes(parts)


def _await(descriptor: int, events: int, patience: Patience) -> None:
    """Waits for events. A pipe that can be written takes `PIPE_BUF` bytes without blocking."""
    poll = select.poll()
    poll.register(descriptor, events)
    while (left_seconds := patience()) > 0:
        if poll.poll(max(_LEAST_MILLISECONDS, left_seconds * 1000)):
            return
    raise TimeoutError
