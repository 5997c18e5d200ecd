"""Reports the progress of reading weights: as lines in the log, and to those who wait for the
engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LINE_SECONDS: Final = 5.0
"""Minimum time between two lines."""
REPORT_SECONDS: Final = 1.0
"""Minimum time between two reports."""

OnRead = Callable[[int, int], None]
"""Callback with the bytes read so far and those of all files."""

logger = logging.getLogger("sluice.engine")


def unreported(_read_bytes: int, _total_bytes: int) -> None:
    """Does nothing; default for callers without reports."""


class LoadProgress:
    """Progress over `total_bytes` of files; one of several ranks reads less. Reports are made in
    the calling thread."""

    def __init__(
        self,
        total_bytes: int,
        on_read: OnRead = unreported,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_bytes = total_bytes
        self._on_read = on_read
        self._clock = clock
        self._read_bytes = 0
        self._started = self._last_line = self._last_report = clock()

    def read(self, size: int) -> None:
        """Counts `size` further bytes as read."""
        self._read_bytes += size
        now = self._clock()
        if now - self._last_report >= REPORT_SECONDS:
            self._last_report = now
            self._on_read(self._read_bytes, self._total_bytes)
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            logger.info("weights: %s, of %.1f GB of files", self._rate(), self._total_bytes / 1e9)

    def finished(self) -> None:
        """Reports the end: nothing more will be read."""
        seconds = self._clock() - self._started
        self._on_read(self._read_bytes, self._total_bytes)
        logger.info("weights: %s, in %.1f s", self._rate(), seconds)

    def _rate(self) -> str:
        seconds = max(self._clock() - self._started, 1e-9)
        return (
            f"{self._read_bytes / 1e9:.2f} GB read at {self._read_bytes / 1e9 / seconds:.2f} GB/s"
        )
