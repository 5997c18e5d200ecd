"""Ends the wait of the engine's loop from another thread. Knows neither who waits nor what for."""

from __future__ import annotations

import os
from contextlib import suppress


class Wakeup:
    """A descriptor that is readable from `set` to `clear`: one more that a poller waits for."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """From any thread; also when nobody waits."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Before looking at what it was set for."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Not beside `set`."""
        os.close(self._descriptor)
