"""Heartbeats while a step computes, so that a long step is not mistaken for a hang.

They are sent by a separate thread, since the engine's thread is inside the model. Both threads use
one ZMQ socket, which only one may use at a time: this one sends only between the start and the end
of a step, under a lock that both take. A step older than the limit counts as hung and gets no more
heartbeats. Knows no scheduler: each heartbeat repeats the load from before the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sluice_runtime.wire.messages import Heartbeat, Load

STEP_LIMIT_SECONDS: Final = 600.0
"""A step that takes longer is hung. The largest prompts on the slowest hosts take minutes."""


class HeartbeatThread:
    """Calls `send` from its own thread, and only while a step computes."""

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
        self._lock = threading.Lock()
        self._load: Load | None = None
        """None between steps."""
        self._began_seconds = 0.0

    @contextmanager
    def step(self, load: Load, began_seconds: float) -> Iterator[None]:
        """Around the computation of a step; its heartbeats carry `load`."""
        with self._lock:
            self._load, self._began_seconds = load, began_seconds
        try:
            yield
        finally:
            with self._lock:
                self._load = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The thread runs inside this context; nothing is sent after it."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopped,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def beat(self) -> None:
        """Sends a heartbeat if a step computes that is neither new nor hung."""
        with self._lock:
            if self._load is None:
                return
            age_seconds = self._monotonic() - self._began_seconds
            if self._every_seconds <= age_seconds < self._limit_seconds:
                self._send(Heartbeat(self._load))

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(self._every_seconds):
            self.beat()
