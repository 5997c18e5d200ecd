"""Calls that cannot be interrupted, made by a thread that the caller need not wait for.

The caller waits until one call has had its time of a processor; then the thread is left alone with
that call, and a new one makes those behind it. Knows no grammar.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final
from weakref import finalize

SHARE: Final = 0.125
"""Of a processor: a thread that gets less of one is not waited for either."""


@dataclass(frozen=True)
class Left:
    """A call that was not waited for."""

    place: int
    starved: bool
    """Whether its thread got no processor; else it used one for too long."""


class Aside:
    """Makes calls for one caller."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._left: list[_Worker] = []

    @property
    def busy(self) -> int:
        """Threads that were left alone with a call and have not come back from it."""
        self._left = [worker for worker in self._left if worker.thread.is_alive()]
        return len(self._left)

    def make(
        self, calls: Sequence[Callable[[], None]], most_seconds: Sequence[float]
    ) -> list[Left]:
        """Makes them in their order; `most_seconds`: of a processor, of each. Returns those that
        were not waited for, which may still be made. Raises what a call raises, and makes none
        behind it."""
        left: list[Left] = []
        first = 0
        while first < len(calls):
            worker = self._worker = self._worker or _Worker()
            work = _Work(calls, most_seconds, first, worker.clock)
            worker.work.put(work)
            lost = work.left()
            if lost is None:
                break
            self._left.append(worker)
            worker.work.put(None)
            self._worker = None
            left.append(lost)
            first = lost.place + 1
        return left


class _Worker:
    """A thread and what it is to do. It ends with a None, or when its owner is gone."""

    def __init__(self) -> None:
        self.work: SimpleQueue[_Work | None] = SimpleQueue()
        self.thread = threading.Thread(
            target=_run, args=(self.work,), name="grammar-masks", daemon=True
        )
        self.thread.start()
        assert self.thread.ident is not None
        self.clock = time.pthread_getcpuclockid(self.thread.ident)
        """Of the processor time of the thread."""
        finalize(self, self.work.put, None)


def _run(work: SimpleQueue[_Work | None]) -> None:
    while (todo := work.get()) is not None:
        todo.make()


class _Work:
    """Calls from the place `first` on. `clock`: of the thread that makes them."""

    def __init__(
        self,
        calls: Sequence[Callable[[], None]],
        most_seconds: Sequence[float],
        first: int,
        clock: int,
    ) -> None:
        self._calls = calls
        self._most_seconds = most_seconds
        self._clock = clock
        self._turn = threading.Condition()
        """Held by the thread when it goes from call to call, and by who leaves it."""
        self._ended = self._left = False
        self._error: BaseException | None = None
        self._begin(first)

    def make(self) -> None:
        """In the thread."""
        try:
            for place in range(self._place, len(self._calls)):
                with self._turn:
                    if self._left:
                        return
                    self._begin(place)
                self._calls[place]()
        except BaseException as error:  # handed to whoever waits
            self._error = error
        with self._turn:
            self._ended = True
            self._turn.notify()

    def left(self) -> Left | None:
        """Waits for the end, or returns the call that has lasted for too long."""
        with self._turn:
            while not self._ended:
                most_seconds = self._most_seconds[self._place]
                used = time.clock_gettime(self._clock) - self._began_processor_seconds
                lasted = time.monotonic() - self._began_seconds
                patience = min(most_seconds - used, most_seconds / SHARE - lasted)
                if patience <= 0:
                    self._left = True
                    return Left(self._place, starved=used < most_seconds)
                self._turn.wait(patience)
        if self._error is not None:
            raise self._error
        return None

    def _begin(self, place: int) -> None:
        self._place = place
        self._began_processor_seconds = time.clock_gettime(self._clock)
        self._began_seconds = time.monotonic()
