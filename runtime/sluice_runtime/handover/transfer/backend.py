"""Transfer backends: each reads ranges of a peer's registered memory into our own.

One-sided: the peer's Python takes no part in a read, and we never write into memory of another
process. Knows no pages, rooms or checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from sluice_runtime.errors import SluiceRuntimeError

MAX_DESCRIPTORS: Final = 1024
"""Pieces of a read that are under way at once: Mooncake fails with 4,096 of them."""


class Piece(NamedTuple):
    """A range of the peer's memory and where it goes in ours."""

    remote_address: int
    local_address: int
    length_bytes: int


class TransferError(SluiceRuntimeError):
    """Memory could not be registered, or a read did not bring every byte.

    `reason` is stable CamelCase, for metrics. With `may_still_land`, bytes may arrive in our
    memory later on: its pages must not be used again while the process lives.
    """

    reason = "Failed"

    def __init__(self, message: str, *, may_still_land: bool = False) -> None:
        super().__init__(message)
        self.may_still_land = may_still_land


class NotRegisteredError(TransferError):
    """A range is outside of registered memory, ours or the peer's, or cannot be registered."""

    reason = "NotRegistered"


class OtherEpochError(TransferError):
    """The process that this session belonged to is gone; another one has its address."""

    reason = "OtherEpoch"


class PeerUnreachableError(TransferError):
    """The peer refused the connection, closed it, or died."""

    reason = "PeerUnreachable"


class TransferTimeoutError(TransferError):
    """Not done within the time that the caller gave."""

    reason = "TimedOut"


class TransferBackend(Protocol):
    """Backend whose methods may be called from any thread; `read` from several at once."""

    @property
    def name(self) -> str:
        """Name as in `kvTransfer.backend`."""
        ...

    @property
    def is_authenticated(self) -> bool:
        """Whether registered memory is readable only with the session, and writable by no peer.
        Otherwise a peer that reaches our ports can do both."""
        ...

    @property
    def reaches_devices(self) -> bool:
        """Whether `register` may be tried on a GPU's memory."""
        ...

    @property
    def session(self) -> str:
        """Address and secret by which a peer reads what is registered so far. Two lives of a
        process never have equal sessions."""
        ...

    def register(self, address: int, length_bytes: int) -> None:
        """Lets peers read this range, and reads fill it, until `close`. With a backend that is not
        authenticated, others may write into it too.

        Raises:
            TransferError: the range cannot be registered.
        """
        ...

    def read(self, session: str, pieces: Sequence[Piece], timeout_seconds: float) -> None:
        """Returns when every byte is in our memory. Waits without the GIL.

        Raises:
            TransferError: what arrived is not to be used.
        """
        ...

    def interrupt(self, pieces: Sequence[Piece]) -> None:
        """Called when the result of this read, which is under way or just over, is no longer
        needed. Ends it now, if the backend can."""
        ...

    def close(self) -> None:
        """Stops serving peers. Not while a read is under way."""
        ...


def total_bytes(pieces: Sequence[Piece]) -> int:
    return sum(piece.length_bytes for piece in pieces)


def describe(backend: str, pieces: Sequence[Piece]) -> str:
    """Description of a read for messages, which clients see: without addresses."""
    count = f"{len(pieces)} piece" + ("s" if len(pieces) != 1 else "")
    return f"{backend}: reading {total_bytes(pieces)} bytes in {count}"
