"""Reads of pages, each with a lease: our pages are nobody else's until a read is over.

A read that ended in doubt, and whose bytes may still arrive, keeps its pages for good. Knows no
message of a prefill engine.
"""

from __future__ import annotations

import logging
from itertools import count

from sluice_runtime.handover.ports import PagePort, PageRead, PagesRead, PeerMemory, ReadCounts
from sluice_runtime.scheduler.scheduler import Scheduler

_log = logging.getLogger("sluice.handover")


class LeasedReads:
    """All reads of a decode engine."""

    def __init__(self, scheduler: Scheduler, port: PagePort) -> None:
        self._scheduler = scheduler
        self._port = port
        self._numbers = count()
        self._under_way: dict[int, PageRead] = {}
        self.quarantined_pages = 0
        """Never used again: a read that timed out may still write them."""

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
        """Rooms and results since the last call; whoever had the pages may give them back now."""
        results = self._port.finished()
        return [(self._end(result).room, result) for result in results]

    def cancel(self, room: int) -> None:
        """What has not begun need not be read any more."""
        self._port.cancel(room)

    def counts(self) -> ReadCounts:
        return self._port.counts()

    def _end(self, result: PagesRead) -> PageRead:
        read = self._under_way.pop(result.number)
        if not result.may_still_land:
            self._scheduler.end_transfer(result.number)
            return read
        self.quarantined_pages += len(read.local_page_ids)
        _log.error(
            "%d pages are never used again, since a read may still write them; "
            "they are %d now, until this engine starts anew: %s",
            len(read.local_page_ids),
            self.quarantined_pages,
            result.error,
        )
        return read
