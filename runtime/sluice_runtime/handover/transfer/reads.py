"""What a `PageReader` is asked for and what it answers. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from sluice_runtime.handover.transfer.backend import Piece, TransferError


class ChecksumMismatchError(TransferError):
    """Other bytes than the peer announced: exchanged, stale or overwritten pages."""

    reason = "ChecksumMismatch"


class ReadCancelledError(TransferError):
    """Nobody wanted it any more; nothing was read."""

    reason = "Cancelled"


class ReaderFullError(TransferError):
    """Too many jobs wait."""

    reason = "QueueFull"


class StagingLostError(TransferError):
    """No block of staging memory is left; reads that timed out may still write all of them. The
    engine has to start anew."""

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
    """From when a thread begins with it."""
    parts: int | None = None
    """Of each page, where the peer has another number of ranks: pieces are whole pages then."""
    end_token: int = 0
    """Where the chunk ends: for whoever collects the result."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The bytes are there and right when `error` is None."""

    job: ReadJob
    seconds: float
    """Without the time in the queue."""
    error: TransferError | None = None


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """Since the start, for metrics."""

    reads: int
    """That brought every byte."""
    read_bytes: int
    read_seconds: float
    failures: dict[str, int]
    """By the error's `reason`."""
    queued: int
    """Now."""
    running: int
    """Now."""
