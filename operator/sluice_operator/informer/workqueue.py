"""The queue of keys: each is queued at most once, and taken by at most one worker at a time.

Timers are passed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Timer(Protocol):
    """Schedules calls. An asyncio event loop is one."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Cancellable: ...


@dataclass(frozen=True)
class Backoff:
    """Exponential back-off with jitter: the n-th delay is half to all of `first * 2**(n-1)`."""

    first_seconds: float
    cap_seconds: float

    def delay_seconds(self, failures: int, draw: float) -> float:
        """The delay after `failures` (≥ 1) failures in a row; `draw` is uniform in [0, 1)."""
        exponent = min(failures - 1, 32)
        return min(self.cap_seconds, self.first_seconds * 2.0**exponent) * (0.5 + draw / 2)


class WorkQueue(Generic[K]):
    """First in, first out; a waiting key is not added again. A key added while a worker has it runs
    again afterwards, because changes may have been missed. A key added while it backs off runs at
    once."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._delayed: dict[K, Cancellable] = {}

    def add(self, key: K) -> None:
        """Queues `key` for the next free worker."""
        if (delayed := self._delayed.pop(key, None)) is not None:
            delayed.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    async def take(self) -> K:
        """Waits for a key. The caller must call `done` with it."""
        key = await self._ready.get()
        self._waiting.remove(key)
        self._running.add(key)
        return key

    def done(self, key: K, again_after_seconds: float | None = None) -> None:
        """Marks `key` as processed; it is queued again after `again_after_seconds`, if given."""
        self._running.remove(key)
        if key in self._again:
            self._again.remove(key)
            self.add(key)
        elif again_after_seconds is not None:
            self._delayed[key] = self._timer.call_later(again_after_seconds, self.add, key)

    def waiting(self) -> frozenset[K]:
        """Keys that a worker could take now."""
        return frozenset(self._waiting)
