"""Transfer backends: each reads ranges of a peer's registered memory into our own.

Reads are one-sided: the peer's Python is not involved, and this process never writes into another's
memory. Knows no pages, rooms or checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from sluice_runtime.errors import SluiceRuntimeError

MAX_DESCRIPTORS: Final = 1024
"""Most pieces of a read under way at once; Mooncake fails with 4,096."""


class MemoryPiece(NamedTuple):
    """A range of the peer's memory, and its destination in ours."""

    remote_address: int
    local_address: int
    length_bytes: int


class TransferError(SluiceRuntimeError):
    """Memory could not be registered, or a read failed.

    `reason` is stable CamelCase, for metrics. With `may_still_land`, bytes may still arrive in our
    memory at any later time, so the read's pages must not be used again by this process.
    """

    reason = "Failed"

    def __init__(self, message: str, *, may_still_land: bool = False) -> None:
        super().__init__(message)
        self.may_still_land = may_still_land


class NotRegisteredError(TransferError):
    """A range is outside of registered memory, ours or the peer's, or cannot be registered."""

    reason = "NotRegistered"


class OtherEpochError(TransferError):
    """The process of the session is gone, and another process has its address."""

    reason = "OtherEpoch"


class PeerUnreachableError(TransferError):
    """The peer refused the connection, closed it, or died."""

    reason = "PeerUnreachable"


class TransferTimeoutError(TransferError):
    """The read was not done within the caller's time limit."""

    reason = "TimedOut"


class TransferBackend(Protocol):
    """Backend whose methods may be called from any thread; `read` from several at once."""

    @property
    def name(self) -> str:
        """Name as in `kvTransfer.backend`."""
        ...

    @property
    def is_authenticated(self) -> bool:
        """Whether peers can read registered memory only with the session, and cannot write it.
        Otherwise every peer that reaches our ports can read and write it."""
        ...

    @property
    def reaches_devices(self) -> bool:
        """Whether `register` may be tried on a GPU's memory."""
        ...

    @property
    def session(self) -> str:
        """Address and secret by which a peer reads the memory registered so far. A restarted
        process has another session."""
        ...

    def register(self, address: int, length_bytes: int) -> None:
        """Lets peers read this range, and reads fill it, until `close`. With a backend that is not
        authenticated, others may write into it too.

        Raises:
            TransferError: the range cannot be registered.
        """
        ...

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        """Reads `pieces`; returns when every byte is in our memory. Releases the GIL while it
        waits.

        Raises:
            TransferError: the read failed; bytes that arrived must not be used.
        """
        ...

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None:
        """Ends a read early, if the backend can, because its result is no longer needed. The read
        may be just over."""
        ...

    def close(self) -> None:
        """Stops serving peers. Must not be called while a read is under way."""
        ...


def total_bytes(pieces: Sequence[MemoryPiece]) -> int:
    return sum(piece.length_bytes for piece in pieces)


def describe(backend: str, pieces: Sequence[MemoryPiece]) -> str:
    """Description of a read for messages; has no addresses, since clients see it."""
    count = f"{len(pieces)} piece" + ("s" if len(pieces) != 1 else "")
    return f"{backend}: reading {total_bytes(pieces)} bytes in {count}"
