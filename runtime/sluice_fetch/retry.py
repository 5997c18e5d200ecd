"""Tries again what failed for a moment: as the hub asks, else ever more seldom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sluice_fetch.errors import TransientError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Retry:
    """How often and how long; `sleep` is passed in."""

    sleep: Callable[[float], None]
    attempts: int = 6
    """In a row without a byte of progress; 31 seconds together where the hub asks for nothing."""
    max_wait_seconds: float = 300.0
    """What a hub may ask for; windows of rate limits are of five minutes."""

    def run(self, call: Callable[[], Result], progress: Callable[[], int] = lambda: 0) -> Result:
        """What `call` returns at last. Attempts count anew once `progress` has changed.

        Raises:
            TransientError: the last one.
        """
        failed, before = 0, progress()
        while True:
            try:
                return call()
            except TransientError as error:
                failed = 1 if progress() != before else failed + 1
                before = progress()
                if failed >= self.attempts:
                    raise
                self.sleep(self._wait_seconds(failed, error.retry_after_seconds))

    def _wait_seconds(self, failed: int, asked: float | None) -> float:
        return min(2.0 ** (failed - 1) if asked is None else asked, self.max_wait_seconds)
