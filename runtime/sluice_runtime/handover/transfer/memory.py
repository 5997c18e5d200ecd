"""Reads within one process, for tests. Not in the registry: no configuration can select it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence

from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    NotRegisteredError,
    PeerUnreachableError,
    describe,
)
from sluice_runtime.handover.transfer.registered import RegisteredMemory


class MemoryNetwork:
    """The backends that can reach each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[str, RegisteredMemory] = {}

    def join(self, session: str, memory: RegisteredMemory) -> None:
        with self._lock:
            self._peers[session] = memory

    def leave(self, session: str) -> None:
        with self._lock:
            self._peers.pop(session, None)

    def peer(self, session: str) -> RegisteredMemory | None:
        with self._lock:
            return self._peers.get(session)


class MemoryBackend:
    """Backend that copies memory. `before_read` is called first in every read; it may wait or
    raise."""

    name = "Memory"
    is_authenticated = True
    reaches_devices = False

    def __init__(self, network: MemoryNetwork, before_read: Callable[[], None] | None = None):
        self._network = network
        self._before_read = before_read
        self._memory = RegisteredMemory()
        self._session = f"memory#{secrets.token_hex(8)}"
        network.join(self._session, self._memory)

    @property
    def session(self) -> str:
        return self._session

    def register(self, address: int, length_bytes: int) -> None:
        self._memory.add(address, length_bytes)

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        """Copies at once; `timeout_seconds` is ignored."""
        if self._before_read is not None:
            self._before_read()
        what = describe(self.name, pieces)
        if (peer := self._network.peer(session)) is None:
            raise PeerUnreachableError(f"{what}: it is closed")
        try:
            for remote, local, length in pieces:
                self._memory.view(local, length)[:] = peer.view(remote, length)
        except NotRegisteredError as error:
            raise NotRegisteredError(f"{what}: {error}") from error

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None:
        """Does nothing: a copy ends by itself."""

    def close(self) -> None:
        self._network.leave(self._session)
