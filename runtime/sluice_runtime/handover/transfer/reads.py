"""Jobs and results of a `PageReader`. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from sluice_runtime.handover.transfer.backend import MemoryPiece, TransferError


class ChecksumMismatchError(TransferError):
    """The bytes differ from those that the peer announced: the pages were swapped, stale or
    overwritten."""

    reason = "ChecksumMismatch"


class ReadCancelledError(TransferError):
    """The read was cancelled before anything was read."""

    reason = "Cancelled"


class ReaderFullError(TransferError):
    """Too many jobs wait."""

    reason = "QueueFull"


class StagingLostError(TransferError):
    """No block of staging memory is left, because reads that timed out may still write into all of
    them. The engine has to be restarted."""

    reason = "StagingLost"


class UnexpectedError(TransferError):
    """A bug of ours or of a library; what was read is unknown."""

    reason = "Unexpected"

    def __init__(self, message: str) -> None:
        super().__init__(message, may_still_land=True)


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Read of one chunk of one room. `pieces` are in the order of the pages, which the checksum
    depends on."""

    room: int
    session: str
    pieces: tuple[MemoryPiece, ...]
    expected_checksum: int | None
    timeout_seconds: float
    """Seconds that the read may take, from its start in a thread."""
    parts: int | None = None
    """Parts of each page if the peer has another number of ranks; pieces are then whole pages.
    None: the numbers are equal."""
    end_token: int = 0
    """End of the chunk in tokens, for the code that collects the result."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Result of a read. If `error` is None, all bytes arrived and are verified."""

    job: ReadJob
    seconds: float
    """Seconds of the read, without the time in the queue."""
    error: TransferError | None = None


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """Counts since the start, for metrics."""

    reads: int
    """Successful reads."""
    read_bytes: int
    read_seconds: float
    failures: dict[str, int]
    """Failed reads by the error's `reason`."""
    queued: int
    """Reads that wait now."""
    running: int
    """Reads that run now."""
