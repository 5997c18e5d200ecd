"""Calls that cannot be interrupted, made in a thread that the caller can abandon.

When one call has used up its processor time, its thread is abandoned with it, and a new thread
makes the calls after it. Knows no grammar.
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
from functools import partial
from queue import SimpleQueue
from typing import Final, Literal
from weakref import finalize

from sluice_runtime.grammar.bounds import SHARE

MAX_ABANDONED: Final = 8
"""Threads at a time; calls after that are skipped."""
PATIENT: Final = 2
"""After so many abandoned calls, the others get `QUICK_SECONDS` only."""
QUICK_SECONDS: Final = 0.01
_MAX_SLOW_OF_A_KIND: Final = 2
_LOWEST: Final = 19
"""Niceness of an abandoned thread."""

AbandonReason = Literal["slow", "starved", "skipped"]


@dataclass(frozen=True)
class AbandonedCall:
    """A call that used too much processor time, whose thread got none, or that was never begun."""

    place: int
    reason: AbandonReason


class UninterruptibleCalls:
    """Makes calls for one thread. `processor_seconds`: what a thread has used, by its clock id."""

    def __init__(
        self,
        processor_seconds: Callable[[int], float] = time.clock_gettime,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processor_seconds = processor_seconds
        self._now = now
        self._worker: _Worker | None = None
        self._abandoned: list[_Worker] = []

    @property
    def busy(self) -> int:
        """Abandoned threads whose call has not returned yet."""
        return sum(worker.thread.is_alive() for worker in self._abandoned)

    def make(
        self,
        calls: Sequence[Callable[[], None]],
        max_seconds: Sequence[float],
        kinds: Sequence[int],
    ) -> list[AbandonedCall]:
        """Makes `calls` in order. `max_seconds`: processor time of each.

        Returns the abandoned ones, which may still be running. After two slow ones of a kind, the
        others of that kind are skipped. Raises what a call raises, and makes none after it.
        """
        abandoned: dict[int, AbandonedCall] = {}
        todo = list(range(len(calls)))
        while todo:
            worker = self._worker = self._worker or _Worker()
            limit = math.inf if len(abandoned) < PATIENT else QUICK_SECONDS
            work = _Work(
                calls,
                [(n, min(max_seconds[n], limit)) for n in todo],
                partial(self._processor_seconds, worker.clock),
                self._now,
            )
            worker.work.put(work)
            overdue = work.overdue()
            if overdue is None:
                break
            self._abandon(worker)
            abandoned[overdue.place] = overdue
            todo = todo[todo.index(overdue.place) + 1 :]
            slow = Counter(kinds[n] for n, one in abandoned.items() if one.reason == "slow")
            skipped = {
                n
                for n in todo
                if self.busy >= MAX_ABANDONED or slow[kinds[n]] >= _MAX_SLOW_OF_A_KIND
            }
            abandoned |= {n: AbandonedCall(n, "skipped") for n in skipped}
            todo = [n for n in todo if n not in skipped]
        return list(abandoned.values())

    def _abandon(self, worker: _Worker) -> None:
        """The thread ends when its call returns; until then it runs at the lowest priority."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, worker.thread.native_id or 0, _LOWEST)
        self._abandoned = [one for one in self._abandoned if one.thread.is_alive()] + [worker]
        worker.work.put(None)
        self._worker = None


class _Worker:
    """A thread and its queue of work. It ends on None, or when its owner is collected."""

    def __init__(self) -> None:
        self.work: SimpleQueue[_Work | None] = SimpleQueue()
        self.thread = threading.Thread(
            target=_run, args=(self.work,), name="grammar-masks", daemon=True
        )
        self.thread.start()
        assert self.thread.ident is not None
        self.clock = time.pthread_getcpuclockid(self.thread.ident)
        """Clock id of the thread's processor time."""
        finalize(self, self.work.put, None)


def _run(work: SimpleQueue[_Work | None]) -> None:
    while (todo := work.get()) is not None:
        todo.make()


class _Work:
    """Calls by place, each with its limit. `processor_seconds`: those of their thread."""

    def __init__(
        self,
        calls: Sequence[Callable[[], None]],
        todo: Sequence[tuple[int, float]],
        processor_seconds: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._calls = calls
        self._todo = todo
        self._processor_seconds = processor_seconds
        self._now = now
        self._turn = threading.Condition()
        """Guards the current call and the flags below."""
        self._ended = self._abandoned = False
        self._error: BaseException | None = None
        self._begin(*todo[0])

    def make(self) -> None:
        """Runs in the thread."""
        try:
            for place, max_seconds in self._todo:
                with self._turn:
                    if self._abandoned:
                        return
                    self._begin(place, max_seconds)
                self._calls[place]()
        except BaseException as error:  # raised again by `overdue`
            self._error = error
        with self._turn:
            self._ended = True
            self._turn.notify()

    def overdue(self) -> AbandonedCall | None:
        """Waits for all calls; returns the one to abandon, if one takes too long."""
        with self._turn:
            while not self._ended:
                used = self._processor_seconds() - self._began_processor_seconds
                lasted = self._now() - self._began_seconds
                limit = self._max_seconds
                patience = min(limit - used, limit / SHARE - lasted)
                if patience <= 0:
                    self._abandoned = True
                    return AbandonedCall(self._place, "slow" if used >= limit else "starved")
                self._turn.wait(patience)
        if self._error is not None:
            raise self._error
        return None

    def _begin(self, place: int, max_seconds: float) -> None:
        self._place, self._max_seconds = place, max_seconds
        self._began_processor_seconds = self._processor_seconds()
        self._began_seconds = self._now()
