"""Frames between the engine and processes for grammars: four bytes of length, then so many bytes.

Knows pipes, not what is in a frame, nor what its reader's patience depends on.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from typing import Final

MOST_BYTES: Final = 64 << 20
"""A compiled grammar that is larger would take the engine's memory, and time to read."""

DONE: Final = b"+"
FAILED: Final = b"-"
TOO_LARGE: Final = b"!"
"""First byte of what the compile process writes: a result; one line that says what is wrong;
nothing more, since there was not enough memory."""

Patience = Callable[[], float]
"""For how many seconds more a frame may be waited for; asked again when they have passed."""

_HEAD: Final = struct.Struct(">I")
_PART_BYTES: Final = 1 << 16
_LEAST_MILLISECONDS: Final = 1


class BrokenFrameError(Exception):
    """The other side has gone."""


class LargeFrameError(Exception):
    """The other side sent a frame of more than `MOST_BYTES`."""


def write_frame(descriptor: int, payload: bytes, patience: Patience | None = None) -> None:
    """Blocks until the other side has taken all of it.

    Raises:
        BrokenFrameError: nobody reads.
        TimeoutError: it was not all taken before `patience` had ended.
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
        BrokenFrameError: there is none, and will be none.
        LargeFrameError: it is too large.
        TimeoutError: it was not all there before `patience` had ended.
    """
    (length,) = _HEAD.unpack(_read(descriptor, _HEAD.size, patience))
    if length > MOST_BYTES:
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
    """A pipe that can be written takes `PIPE_BUF` bytes without waiting."""
    poll = select.poll()
    poll.register(descriptor, events)
    while (left_seconds := patience()) > 0:
        if poll.poll(max(_LEAST_MILLISECONDS, left_seconds * 1000)):
            return
    raise TimeoutError
