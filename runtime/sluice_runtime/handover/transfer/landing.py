"""Brings the bytes of one read into our pages and verifies them. The bytes go directly, or through
blocks of host memory if the pages are in device memory or other processes could write into them.

The checksum is computed over the pages, so that foreign writes into a block fail the check. Pages
of an engine with another number of ranks are split by heads on their way from a block, and checked
in that engine's order. Called by the threads of a `PageReader`. Knows no scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    TransferBackend,
    TransferError,
    total_bytes,
)
from sluice_runtime.handover.transfer.reads import ChecksumMismatchError, ReadJob
from sluice_runtime.handover.transfer.registered import checksum
from sluice_runtime.handover.transfer.staging import (
    Blocks,
    DeviceChecksum,
    StagingMemory,
    in_blocks,
    pool_ranges,
)

Checksum = Callable[[Iterable[tuple[int, int]], int], int]
"""Function: ((address, length) ranges of our pages, room) → checksum."""


class Landing(Protocol):
    """Way of a read's bytes into our pages. Every method may be called from any thread."""

    def read(self, job: ReadJob) -> None:
        """Reads a job's bytes; returns when all are in our pages and verified.

        Raises:
            TransferError: the read failed; the pages must not be used.
        """
        ...

    def interrupt(self, job: ReadJob) -> None:
        """Ends a read early, if the backend can. The read may be just over."""
        ...


class DirectLanding:
    """Landing in which the backend writes into the pages directly."""

    def __init__(self, backend: TransferBackend, checksum_of: Checksum = checksum) -> None:
        self._backend = backend
        self._checksum_of = checksum_of

    def read(self, job: ReadJob) -> None:
        self._backend.read(job.session, job.pieces, job.timeout_seconds)
        verify(job, self._checksum_of)

    def interrupt(self, job: ReadJob) -> None:
        self._backend.interrupt(job.pieces)


class StagedLanding:
    """Landing in which the backend writes into a block, which is then copied into the pages. A
    failed read that may still write costs a block, but no page."""

    def __init__(
        self,
        backend: TransferBackend,
        memory: StagingMemory,
        pool_address: int,
        checksum_of: DeviceChecksum,
    ) -> None:
        self._backend = backend
        self._memory = memory
        self._blocks = Blocks(range(memory.counts.shared))
        self._pool_address = pool_address
        self._checksum_of = checksum_of
        self._reading: dict[int, tuple[MemoryPiece, ...]] = {}
        """Pieces that the backend reads for a job, by the job's identity."""

    def read(self, job: ReadJob) -> None:
        deadline = time.monotonic() + job.timeout_seconds
        block = self._blocks.take()
        try:
            for part in in_blocks(job.pieces, self._memory.block_bytes):
                self._read_part(job, part, block, deadline)
                self._memory.to_device(block, pool_ranges(part, self._pool_address), job.parts)
        except TransferError as error:
            if error.may_still_land:  # the block is lost
                raise type(error)(str(error)) from error
            self._blocks.give_back(block)
            raise
        self._blocks.give_back(block)
        verify(job, partial(self._checksum_of, parts=job.parts))

    def interrupt(self, job: ReadJob) -> None:
        if pieces := self._reading.get(id(job)):
            self._backend.interrupt(pieces)

    def _read_part(
        self, job: ReadJob, part: Sequence[MemoryPiece], block: int, deadline_seconds: float
    ) -> None:
        address, landing = self._memory.address_of(block), list[MemoryPiece]()
        for piece in part:
            landing.append(MemoryPiece(piece.remote_address, address, piece.length_bytes))
            address += piece.length_bytes
        self._reading[id(job)] = tuple(landing)
        try:
            left_seconds = max(0.0, deadline_seconds - time.monotonic())
            self._backend.read(job.session, landing, left_seconds)
        finally:
            del self._reading[id(job)]


class LandingByParts:
    """Landing that uses `same` for pages with our number of parts, and `divided` for pages to be
    split by heads."""

    def __init__(self, same: Landing, divided: Landing) -> None:
        self._same = same
        self._divided = divided

    def read(self, job: ReadJob) -> None:
        self._of(job).read(job)

    def interrupt(self, job: ReadJob) -> None:
        self._of(job).interrupt(job)

    def _of(self, job: ReadJob) -> Landing:
        return self._same if job.parts is None else self._divided


def verify(job: ReadJob, checksum_of: Checksum) -> None:
    """
    Raises:
        ChecksumMismatchError: our pages have other bytes than announced.
    """
    if (expected := job.expected_checksum) is None:
        return
    ranges = ((piece.local_address, piece.length_bytes) for piece in job.pieces)
    if (found := checksum_of(ranges, job.room)) != expected:
        raise ChecksumMismatchError(
            f"checksum of {total_bytes(job.pieces)} bytes is {found:016x}, "
            f"announced: {expected:016x}"
        )
