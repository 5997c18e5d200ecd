"""Reads pages concurrently with the engine's loop: a few threads over one `Landing`.

The loop submits a job for each announced chunk and collects results when it is woken. Every job has
exactly one result. Knows no scheduler: pages are addresses here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluice_contract.wire.load import MEASURED_BYTES, read_rate

from sluice_runtime.handover.transfer.backend import TransferError, total_bytes
from sluice_runtime.handover.transfer.landing import Landing
from sluice_runtime.handover.transfer.reads import (
    ReadCancelledError,
    ReaderCounts,
    ReaderFullError,
    ReadJob,
    ReadResult,
    UnexpectedError,
)

WORKERS: Final = 4
MAX_PER_SESSION: Final = 2
"""Most reads from one peer at once. A second one runs only if a thread is left for other peers. So
frozen peers delay others only when there are as many of them as threads."""
MAX_QUEUED: Final = 4096

logger = logging.getLogger("sluice.handover.reader")


@dataclass
class _Totals:
    reads: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


class PageReader:
    """Reads pages from the constructor until `close`. `on_finished`: called by a thread for each
    result that can be collected. `wire`: name of the transport, for the log."""

    def __init__(
        self,
        landing: Landing,
        on_finished: Callable[[], None],
        workers: int = WORKERS,
        max_queued: int = MAX_QUEUED,
        wire: str = "",
    ) -> None:
        self._landing = landing
        self._on_finished = on_finished
        self._max_queued = max_queued
        self._workers = workers
        self._wire = wire
        self._changed = threading.Condition()
        """Lock of everything below; notified when a thread may find a job."""
        self._queue: deque[ReadJob] = deque()
        self._running: Counter[str] = Counter()
        """Reads of each session."""
        self._begun: dict[int, ReadJob] = {}
        """Running jobs, by their identity."""
        self._results: list[ReadResult] = []
        self._totals = _Totals()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"kv-read-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: ReadJob) -> None:
        """Queues a job.

        Raises:
            ReaderFullError: too many jobs wait, or the reader is closed; the job is not queued.
        """
        with self._changed:
            if self._closed or len(self._queue) >= self._max_queued:
                state = "closed" if self._closed else f"full: {self._max_queued} reads wait"
                raise ReaderFullError(f"room {job.room}: the reader is {state}")
            self._queue.append(job)
            self._changed.notify()

    def cancel(self, room: int) -> None:
        """Cancels this room's jobs. Waiting jobs end as cancelled. A running job ends now if the
        backend can end it, else by itself; until its result comes it may write into its pages."""
        with self._changed:
            begun = [job for job in self._begun.values() if job.room == room]
            dropped = [job for job in self._queue if job.room == room]
            self._queue = deque(job for job in self._queue if job.room != room)
            for job in dropped:
                self._record(ReadResult(job, 0.0, ReadCancelledError(f"room {room}: cancelled")))
        for job in begun:
            self._landing.interrupt(job)
        if dropped:
            self._on_finished()

    def finished(self) -> list[ReadResult]:
        """The results since the last call, in the order in which they came."""
        with self._changed:
            results, self._results = self._results, []
            return results

    def counts(self) -> ReaderCounts:
        with self._changed:
            totals = self._totals
            return ReaderCounts(
                totals.reads,
                totals.read_bytes,
                totals.read_seconds,
                dict(totals.failures),
                len(self._queue),
                self._running.total(),
            )

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Drops waiting jobs and waits for running ones, up to `timeout_seconds`; threads still
        busy then are abandoned.

        Does not close the backend below.
        """
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began_seconds = time.monotonic()
            error = self._read(job)
            result = ReadResult(job, time.monotonic() - began_seconds, error)
            with self._changed:
                del self._begun[id(job)]
                self._running[job.session] -= 1
                self._running += Counter()  # leaves out zeros
                self._record(result)
                self._changed.notify()
            try:
                self._on_finished()
            except Exception:
                logger.exception("the reader's callback failed")

    def _next(self) -> ReadJob | None:
        """Waits for a job that may run; None once the reader is closed."""
        with self._changed:
            while not self._closed:
                for job in self._queue:
                    if self._may_begin(job):
                        self._queue.remove(job)
                        self._running[job.session] += 1
                        self._begun[id(job)] = job
                        return job
                self._changed.wait()
            return None

    def _may_begin(self, job: ReadJob) -> bool:
        of_peer, begun = self._running[job.session], len(self._begun)
        return not of_peer or (of_peer < MAX_PER_SESSION and begun + 1 < self._workers)

    def _read(self, job: ReadJob) -> TransferError | None:
        try:
            self._landing.read(job)
        except TransferError as error:
            peer = job.session.partition("#")[0]
            logger.warning("room %d: a read from %s failed: %s", job.room, peer, error)
            return error
        except Exception as error:
            logger.exception("room %d: a read failed unexpectedly", job.room)
            return UnexpectedError(f"room {job.room}: {type(error).__name__}: {error}")
        return None

    def _record(self, result: ReadResult) -> None:
        """Called under the lock."""
        self._results.append(result)
        totals = self._totals
        if result.error is not None:
            totals.failures[result.error.reason] += 1
            return
        is_measured = totals.read_bytes >= MEASURED_BYTES
        totals.reads += 1
        totals.read_bytes += total_bytes(result.job.pieces)
        totals.read_seconds += result.seconds
        if not is_measured and (rate := read_rate(totals.read_bytes, totals.read_seconds)):
            first = totals.read_bytes >> 20
            logger.info("KV transfer: %s, %s GB/s in the first %d MiB", self._wire, rate, first)
