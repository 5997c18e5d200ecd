"""Lines in the log while weights are read: how much, and how fast."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LINE_SECONDS: Final = 5.0
"""Between two lines, at least."""

logger = logging.getLogger("sluice.engine")


class LoadProgress:
    """`total_bytes`: of the files; a rank of several reads less."""

    def __init__(self, total_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_bytes = total_bytes
        self._clock = clock
        self._read_bytes = 0
        self._started = self._last_line = clock()

    def read(self, size: int) -> None:
        """So many bytes more are on the device."""
        self._read_bytes += size
        now = self._clock()
        if now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            logger.info("weights: %s, of %.1f GB of files", self._rate(), self._total_bytes / 1e9)

    def finished(self) -> None:
        """Nothing more will be read."""
        seconds = self._clock() - self._started
        logger.info("weights: %s, in %.1f s", self._rate(), seconds)

    def _rate(self) -> str:
        seconds = max(self._clock() - self._started, 1e-9)
        return (
            f"{self._read_bytes / 1e9:.2f} GB read at {self._read_bytes / 1e9 / seconds:.2f} GB/s"
        )
