"""Heartbeats while a step computes, so that a long one is not taken for a hang.

A thread of its own sends them, since the engine's thread is inside the model. Both use one socket,
which belongs to one thread at a time: this one sends between the beginning and the end of a step
only, under a lock that both ends take. A step older than the limit hangs, and is not covered up.
Knows no scheduler: it repeats the load that was known when the step began.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sluice_runtime.messages import Heartbeat, Load

STEP_LIMIT_SECONDS: Final = 600.0
"""A step that takes longer hangs. The largest prompts on the slowest hosts take minutes."""


class Pulse:
    """`send` is called by the thread of `beating`, and only while a step computes."""

    def __init__(
        self,
        send: Callable[[Heartbeat], None],
        monotonic: Callable[[], float],
        every_seconds: float,
        limit_seconds: float = STEP_LIMIT_SECONDS,
    ) -> None:
        self._send = send
        self._monotonic = monotonic
        self._every_seconds = every_seconds
        self._limit_seconds = limit_seconds
        self._turn = threading.Lock()
        self._load: Load | None = None
        """None between steps."""
        self._began_seconds = 0.0

    @contextmanager
    def step(self, load: Load, began_seconds: float) -> Iterator[None]:
        """A step computes inside; `load` is what heartbeats repeat."""
        with self._turn:
            self._load, self._began_seconds = load, began_seconds
        try:
            yield
        finally:
            with self._turn:
                self._load = None

    @contextmanager
    def beating(self) -> Iterator[None]:
        """The thread lives inside; nothing is sent after."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopped,), name="pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def beat(self) -> None:
        """A heartbeat, if a step computes that is neither new nor hanging."""
        with self._turn:
            if self._load is None:
                return
            age_seconds = self._monotonic() - self._began_seconds
            if self._every_seconds <= age_seconds < self._limit_seconds:
                self._send(Heartbeat(self._load))

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._every_seconds):
            self.beat()
