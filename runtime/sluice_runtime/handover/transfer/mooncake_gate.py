"""A native engine of Mooncake that reports when it is stuck.

The first read from a peer holds a lock that all reads need, for a minute if the peer is frozen. So
it is made alone, while other reads wait here, for at most a second from its start. Knows only a
peer's address.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sluice_runtime.handover.transfer.backend import MemoryPiece, NotRegisteredError
from sluice_runtime.handover.transfer.mooncake_engine import LANES, MooncakeEngine

STUCK_SECONDS: Final = 1.0
"""Time after which a first read counts as stuck; from a healthy peer it takes milliseconds."""


class GatedEngine:
    """A Mooncake engine whose first reads are made alone. Every method may be called from any
    thread."""

    def __init__(self, native: MooncakeEngine) -> None:
        self._native = native
        self._changed = threading.Condition()
        """Lock of `_opening_since` and `_submitting`; notified when an opening or a submission
        ends."""
        self._opening_since: float | None = None
        """Monotonic time since which one peer is being opened; None while none is."""
        self._submitting = 0
        self._scratch = ctypes.create_string_buffer(1)
        """Memory for bytes whose value does not matter."""
        self.register(ctypes.addressof(self._scratch), 1)
        self.port = native.get_rpc_port()
        self.status: Callable[[int], int] = native.transfer_check_status
        self.probe: Callable[[str], int] = native.send_probe

    @property
    def stuck(self) -> bool:
        """Whether the first read from a peer blocks all other reads."""
        with self._changed:
            return not self._passable()

    def open(self, peer: str, remote_address: int) -> int:
        """Makes the first read from a peer, of one byte; returns the number of its batch, 0 if it
        failed. Takes a minute if the peer is frozen."""
        with self._alone():
            return self._submit(peer, self._byte(remote_address))

    def submit(self, peer: str, piece: MemoryPiece) -> int:
        """Submits a read; returns the number of its batch, 0 if it was refused or the engine is
        stuck."""
        with self._changed:
            if not self._passable():
                return 0
            self._submitting += 1
        try:
            return self._submit(peer, piece)
        finally:
            with self._changed:
                self._submitting -= 1
                self._changed.notify_all()

    def ask_every_lane(self, peer: str, remote_address: int) -> list[int]:
        """Starts reading a byte over each connection to a peer; returns the numbers of the batches.
        Mooncake closes connections over which no byte arrives."""
        batches = [self.submit(peer, self._byte(remote_address)) for _ in range(LANES)]
        return [batch for batch in batches if batch]

    def register(self, address: int, length_bytes: int) -> None:
        """
        Raises:
            NotRegisteredError: the range cannot be registered.
        """
        if (code := self._native.register_memory(address, length_bytes)) != 0:
            raise NotRegisteredError(
                f"Mooncake: cannot register {length_bytes} bytes at {address:#x} (code {code})"
            )

    def unregister(self, address: int) -> None:
        self._native.unregister_memory(address)

    def _passable(self) -> bool:
        """Waits until no first read is in progress, but at most STUCK_SECONDS from its start;
        returns whether none is. Called under the lock."""
        while (since := self._opening_since) is not None:
            left_seconds = since + STUCK_SECONDS - time.monotonic()
            if left_seconds <= 0:
                return False
            self._changed.wait(left_seconds)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context in which no other thread submits a read or makes a first read."""
        with self._changed:
            self._changed.wait_for(lambda: self._opening_since is None)
            self._opening_since = time.monotonic()
            self._changed.wait_for(lambda: not self._submitting)
        try:
            yield
        finally:
            with self._changed:
                self._opening_since = None
                self._changed.notify_all()

    def _submit(self, peer: str, piece: MemoryPiece) -> int:
        remote, local, length = piece
        return self._native.batch_transfer_async_read(peer, [local], [remote], [length])

    def _byte(self, remote_address: int) -> MemoryPiece:
        return MemoryPiece(remote_address, ctypes.addressof(self._scratch), 1)
