"""A native engine of Mooncake that reports when it is stuck.

A first read of a peer holds a lock that all reads need, for a minute when the peer is frozen. So it
is made by itself, while other reads wait here: for a second at most from its beginning. Knows
nothing of a peer but its address.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sluice_runtime.handover.transfer.backend import NotRegisteredError, Piece
from sluice_runtime.handover.transfer.mooncake_engine import LANES, MooncakeEngine

STUCK_SECONDS: Final = 1.0
"""A first read of a peer that is well takes milliseconds."""


class GatedEngine:
    """Every method may be called from any thread."""

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
        """Whether a peer that is being opened keeps everyone else from reading."""
        with self._changed:
            return not self._passable()

    def open(self, peer: str, remote_address: int) -> int:
        """The first read of a peer, of a byte: number of its batch, or 0. Takes a minute when the
        peer is frozen."""
        with self._alone():
            return self._submit(peer, self._byte(remote_address))

    def submit(self, peer: str, piece: Piece) -> int:
        """Number of the batch; 0 when it could not be submitted, or the engine is stuck."""
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
        """Reads a byte over each connection to a peer: numbers of the batches. Mooncake closes
        connections over which none comes."""
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
        """Waits for a peer that is being opened, not longer than one that is well takes. Called
        under the lock."""
        while (since := self._opening_since) is not None:
            left_seconds = since + STUCK_SECONDS - time.monotonic()
            if left_seconds <= 0:
                return False
            self._changed.wait(left_seconds)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps all threads from submitting and from opening another peer meanwhile."""
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

    def _submit(self, peer: str, piece: Piece) -> int:
        remote, local, length = piece
        return self._native.batch_transfer_async_read(peer, [local], [remote], [length])

    def _byte(self, remote_address: int) -> Piece:
        return Piece(remote_address, ctypes.addressof(self._scratch), 1)
