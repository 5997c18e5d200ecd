"""A native engine of Mooncake that tells when it is stuck.

A first read of a peer holds a lock that all reads need, for a minute when the peer is frozen. So it
is made by itself, behind a lock of ours, for which other reads wait a second at most. Knows nothing
of a peer but its address.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from sluice_runtime.handover.transfer.backend import NotRegisteredError, Piece
from sluice_runtime.handover.transfer.mooncake_engine import LANES, MooncakeEngine

STUCK_SECONDS: Final = 1.0
"""A first read of a peer that is well takes milliseconds."""


class GatedEngine:
    """Every method may be called from any thread."""

    def __init__(self, native: MooncakeEngine) -> None:
        self._native = native
        self._opening = threading.Lock()
        self._scratch = ctypes.create_string_buffer(1)
        """Where bytes go that nobody looks at."""
        self.register(ctypes.addressof(self._scratch), 1)
        self.port = native.get_rpc_port()
        self.status: Callable[[int], int] = native.transfer_check_status
        self.probe: Callable[[str], int] = native.send_probe

    @property
    def stuck(self) -> bool:
        """Whether a peer that is being opened keeps everyone else from reading."""
        if not self._opening.acquire(timeout=STUCK_SECONDS):
            return True
        self._opening.release()
        return False

    def open(self, peer: str, remote_address: int) -> int:
        """The first read of a peer, of a byte: number of its batch, or 0. Takes a minute when the
        peer is frozen."""
        with self._opening:
            return self._submit(peer, self._byte(remote_address))

    def submit(self, peer: str, piece: Piece) -> int:
        """Number of the batch; 0 when it could not be submitted, or the engine is stuck."""
        if not self._opening.acquire(timeout=STUCK_SECONDS):
            return 0
        try:
            return self._submit(peer, piece)
        finally:
            self._opening.release()

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

    def _submit(self, peer: str, piece: Piece) -> int:
        remote, local, length = piece
        return self._native.batch_transfer_async_read(peer, [local], [remote], [length])

    def _byte(self, remote_address: int) -> Piece:
        return Piece(remote_address, ctypes.addressof(self._scratch), 1)
