"""Jobs and results of a `PageReader`. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from sluice_runtime.handover.transfer.backend import Piece, TransferError


class ChecksumMismatchError(TransferError):
    """Other bytes than the peer announced: exchanged, stale or overwritten pages."""

    reason = "ChecksumMismatch"


class ReadCancelledError(TransferError):
    """The read was cancelled before anything was read."""

    reason = "Cancelled"


class ReaderFullError(TransferError):
    """Too many jobs wait."""

    reason = "QueueFull"


class StagingLostError(TransferError):
    """No block of staging memory is left; reads that timed out may still write all of them. The
    engine has to be restarted."""

    reason = "StagingLost"


class UnexpectedError(TransferError):
    """A bug, ours or a library's. Nothing is known of what was read."""

    reason = "Unexpected"

    def __init__(self, message: str) -> None:
        super().__init__(message, may_still_land=True)


@dataclass(frozen=True, slots=True)
class ReadJob:
    """One chunk of one room. `pieces` in the order of the pages: the checksum goes by it."""

    room: int
    session: str
    pieces: tuple[Piece, ...]
    expected_checksum: int | None
    timeout_seconds: float
    """Seconds that the read may take, from its start in a thread."""
    parts: int | None = None
    """Parts of each page, where the peer has another number of ranks: pieces are whole pages
    then."""
    end_token: int = 0
    """Token at which the chunk ends, for the collector of the result."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The bytes are there and right when `error` is None."""

    job: ReadJob
    seconds: float
    """Seconds of the read, without the time in the queue."""
    error: TransferError | None = None


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """Counts since the start, for metrics."""

    reads: int
    """Reads that brought every byte."""
    read_bytes: int
    read_seconds: float
    failures: dict[str, int]
    """Failed reads by the error's `reason`."""
    queued: int
    """Reads that wait now."""
    running: int
    """Reads that run now."""
