"""Retries transient failures: after the delay that the hub asks for, else with increasing delay."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from sluice_fetch.errors import TransientError

Result = TypeVar("Result")
Wait = Callable[[threading.Event, float], object]
"""Function that waits for a number of seconds, or until the event is set."""
_NEVER: Final = threading.Event()


class Stopped(Exception):  # noqa: N818  no error: another file failed
    """The download was given up."""


@dataclass(frozen=True)
class Retry:
    """Number and delays of attempts; `wait` is passed in."""

    wait: Wait
    attempts: int = 6
    """Most attempts in succession without progress; their delays add up to 31 seconds unless the
    hub sets others."""
    max_wait_seconds: float = 300.0
    """The longest delay that a hub may ask for; rate-limit windows are five minutes."""

    def run(
        self,
        call: Callable[[], Result],
        progress: Callable[[], int] = lambda: 0,
        stop: threading.Event = _NEVER,
    ) -> Result:
        """The result of `call`. Attempts are counted from zero when `progress` has changed.

        Raises:
            TransientError: the last attempt's error.
            Stopped: `stop` was set during the wait for the next attempt.
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
                self.wait(stop, self._wait_seconds(failed, error.retry_after_seconds))
                if stop.is_set():
                    raise Stopped from None

    def _wait_seconds(self, failed: int, retry_after_seconds: float | None) -> float:
        return min(
            2.0 ** (failed - 1) if retry_after_seconds is None else retry_after_seconds,
            self.max_wait_seconds,
        )
