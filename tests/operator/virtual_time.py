"""Time that passes only when a test says so."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock whose `sleep` returns at once, later."""

    def __init__(self) -> None:
        self.elapsed_seconds = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.elapsed_seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_seconds)

    async def sleep(self, seconds: float) -> None:
        self.elapsed_seconds += seconds
        self.on_sleep()


class FakeTimer:
    """Stands in for an event loop's `call_later`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._calls: list[tuple[float, int, Call]] = []

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Call:
        call = Call(callback, args)
        heapq.heappush(self._calls, (self._now + delay, len(self._calls), call))
        return call

    def advance(self, seconds: float) -> None:
        """Makes every call that is due by then, in order."""
        self._now += seconds
        while self._calls and self._calls[0][0] <= self._now:
            heapq.heappop(self._calls)[2].run()


class Call:
    """One scheduled call."""

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def run(self) -> None:
        if not self._cancelled:
            self._callback(*self._args)
