"""Reads of pages, each with a lease: our pages have no other owner until a read is over.

After a failed read whose bytes may still arrive, its pages are taken out of the pool for good. Once
that has cost too much of the pool, the process has to be restarted. Knows no message of a prefill
engine.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import Final

from sluice_runtime.errors import EngineUnfitError
from sluice_runtime.handover.ports import PagePort, PageRead, PagesRead, PeerMemory, ReadCounts
from sluice_runtime.scheduler.scheduler import Scheduler

_log = logging.getLogger("sluice.handover")

MAX_QUARANTINED: Final = 0.1
"""Largest fraction of the pool that may be in quarantine; an engine with more ends, so that it is
restarted."""


class LeasedReads:
    """All reads of a decode engine."""

    def __init__(self, scheduler: Scheduler, port: PagePort) -> None:
        self._scheduler = scheduler
        self._port = port
        self._numbers = count()
        self._under_way: dict[int, PageRead] = {}
        self.quarantined_pages = 0
        """Number of pages that left the pool for good: a read that timed out may still write
        them."""
        self._pool_pages = scheduler.status().pages_total

    def __len__(self) -> int:
        return len(self._under_way)

    def submit(
        self,
        request_id: str,
        room: int,
        memory: PeerMemory,
        pages: tuple[tuple[int, ...], tuple[int, ...]],
        checksum: int,
    ) -> int:
        """Reads into pages of a preallocated request; returns the number of the read. `pages`: the
        other engine's and ours."""
        theirs, ours = pages
        read = PageRead(next(self._numbers), room, memory, theirs, ours, checksum)
        self._scheduler.begin_transfer(request_id, read.number)
        self._under_way[read.number] = read
        self._port.submit(read)
        return read.number

    def finished(self) -> list[tuple[int, PagesRead]]:
        """Rooms and results since the last call. The pages of these reads may now be freed by their
        owners.

        Raises:
            EngineUnfitError: too much of the pool is lost.
        """
        results = self._port.finished()
        return [(self._end(result).room, result) for result in results]

    def cancel(self, room: int) -> None:
        """Cancels reads of this room that have not begun."""
        self._port.cancel(room)

    def counts(self) -> ReadCounts:
        return self._port.counts()

    def _end(self, result: PagesRead) -> PageRead:
        read = self._under_way.pop(result.number)
        if result.may_still_land:
            self._quarantine(read, result.error)
        self._scheduler.end_transfer(result.number)
        return read

    def _quarantine(self, read: PageRead, error: str | None) -> None:
        lost = self.quarantined_pages = self._scheduler.retire(read.local_page_ids)
        state = (
            f"{lost} of {self._pool_pages} KV pages are out of use until this engine starts anew, "
            f"since reads may still write them, the last one: {error}"
        )
        _log.error("%s", state)
        if lost > MAX_QUARANTINED * self._pool_pages:
            raise EngineUnfitError(f"{state}; allowed: at most {MAX_QUARANTINED:.0%}")
