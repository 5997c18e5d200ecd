"""Calls that cannot be interrupted, made by a thread that the caller need not wait for.

The caller waits until one call has had its time of a processor; then the thread is left alone with
that call, and a new one makes those behind it. Knows no grammar.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Literal
from weakref import finalize

from sluice_runtime.grammar.bounds import SHARE

MOST_LEFT: Final = 8
"""Calls of one `make`; those behind are not made."""
PATIENT: Final = 2
"""After so many, those behind must be quick."""
QUICK_SECONDS: Final = 0.01
_LONG_OF_A_KIND: Final = 2
_LOWEST: Final = 19
"""Niceness of a thread that nobody waits for."""

LeftReason = Literal["long", "starved", "unmade"]


@dataclass(frozen=True)
class Left:
    """A call that nobody waited for: it used a processor for too long, its thread got none, or it
    was never begun."""

    place: int
    reason: LeftReason


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
        self,
        calls: Sequence[Callable[[], None]],
        most_seconds: Sequence[float],
        kinds: Sequence[int],
    ) -> list[Left]:
        """Makes them in their order; `most_seconds`: of a processor, of each. Returns those that
        were not waited for, which may still be made. When two of a kind were long, the others of it
        are not begun. Raises what a call raises, and makes none behind it."""
        left: dict[int, Left] = {}
        todo = list(range(len(calls)))
        while todo:
            worker = self._worker = self._worker or _Worker()
            limit = math.inf if len(left) < PATIENT else QUICK_SECONDS
            work = _Work(calls, [(n, min(most_seconds[n], limit)) for n in todo], worker.clock)
            worker.work.put(work)
            lost = work.left()
            if lost is None:
                break
            self._leave(worker)
            left[lost.place] = lost
            todo = todo[todo.index(lost.place) + 1 :]
            long = Counter(kinds[n] for n, one in left.items() if one.reason == "long")
            given_up = {
                n for n in todo if self.busy >= MOST_LEFT or long[kinds[n]] >= _LONG_OF_A_KIND
            }
            left |= {n: Left(n, "unmade") for n in given_up}
            todo = [n for n in todo if n not in given_up]
        return list(left.values())

    def _leave(self, worker: _Worker) -> None:
        """It ends when it comes back; until then it takes only what nobody else wants."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, worker.thread.native_id or 0, _LOWEST)
        self._left.append(worker)
        worker.work.put(None)
        self._worker = None


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
    """Calls by their places, each with what it may take. `clock`: of the thread that makes them."""

    def __init__(
        self, calls: Sequence[Callable[[], None]], todo: Sequence[tuple[int, float]], clock: int
    ) -> None:
        self._calls = calls
        self._todo = todo
        self._clock = clock
        self._turn = threading.Condition()
        """Held by the thread when it goes from call to call, and by who leaves it."""
        self._ended = self._left = False
        self._error: BaseException | None = None
        self._begin(*todo[0])

    def make(self) -> None:
        """In the thread."""
        try:
            for place, most_seconds in self._todo:
                with self._turn:
                    if self._left:
                        return
                    self._begin(place, most_seconds)
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
                used = time.clock_gettime(self._clock) - self._began_processor_seconds
                lasted = time.monotonic() - self._began_seconds
                most = self._most_seconds
                patience = min(most - used, most / SHARE - lasted)
                if patience <= 0:
                    self._left = True
                    return Left(self._place, "long" if used >= most else "starved")
                self._turn.wait(patience)
        if self._error is not None:
            raise self._error
        return None

    def _begin(self, place: int, most_seconds: float) -> None:
        self._place, self._most_seconds = place, most_seconds
        self._began_processor_seconds = time.clock_gettime(self._clock)
        self._began_seconds = time.monotonic()
