"""How far a download is: bytes of all, speed, time left. Several threads add; time is passed in."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""Speed is that of the last so many seconds."""


@dataclass(frozen=True)
class Progress:
    bytes: int
    total: int
    bytes_per_second: float
    eta_seconds: float | None
    """None where nothing has come lately."""

    def fields(self) -> dict[str, int | None]:
        """As a line of output has them."""
        return {
            "bytes": self.bytes,
            "total": self.total,
            "bytesPerSecond": round(self.bytes_per_second),
            "etaSeconds": None if self.eta_seconds is None else round(self.eta_seconds),
        }


class Meter:
    """Counts what is there and tells `report` at most every `every_seconds`."""

    def __init__(
        self,
        total: int,
        clock: Callable[[], float],
        report: Callable[[Progress], None],
        every_seconds: float = 2.0,
    ) -> None:
        self._total, self._clock, self._report = total, clock, report
        self._every_seconds = every_seconds
        self._there = 0
        self._received = 0
        self._reported_at = clock()
        self._seen: deque[tuple[float, int]] = deque([(self._reported_at, 0)])
        self._lock = threading.Lock()

    def already_there(self, count: int) -> None:
        """Bytes that an earlier run had left; negative where they turn out to be worth nothing."""
        with self._lock:
            self._there += count

    def received(self, count: int) -> None:
        """Bytes that came just now."""
        with self._lock:
            self._there += count
            self._received += count
            now = self._clock()
            if now - self._reported_at >= self._every_seconds:
                self._reported_at = now
                self._report(self._progress(now))

    def progress(self) -> Progress:
        with self._lock:
            return self._progress(self._clock())

    def _progress(self, now: float) -> Progress:
        self._seen.append((now, self._received))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        speed = (self._received - before) / (now - since) if now > since else 0.0
        left = (self._total - self._there) / speed if speed else None
        return Progress(self._there, self._total, speed, left)
