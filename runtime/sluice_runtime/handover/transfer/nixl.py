"""Backend NIXL: one-sided reads by NVIDIA's transfer library, over UCX.

Everyone who reaches the network adapter can read and write the registered memory. NIXL cannot end a
read that is under way: a late read may still write. A session holds the agent's metadata, so the
first read needs no request to the peer.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sluice_runtime.handover.transfer.backend import (
    MAX_DESCRIPTORS,
    MemoryPiece,
    NotRegisteredError,
    OtherEpochError,
    TransferError,
    TransferTimeoutError,
    describe,
)
from sluice_runtime.handover.transfer.nixl_agent import NixlAgent
from sluice_runtime.handover.transfer.registered import RegisteredMemory, check_range

NAME_BYTES: Final = 8
MAX_PEERS: Final = 64
"""Most peers that stay connected between two reads."""
FIRST_PAUSE_SECONDS: Final = 0.000_02
LONGEST_PAUSE_SECONDS: Final = 0.001


@dataclass(eq=False)
class _Peer:
    """One connection to a peer; after a failure a new connection is a new `_Peer`."""

    metadata: bytes
    name: str
    reads: int = 0
    """Reads of this peer that are under way."""


class NixlBackend:
    """Backend that serves reads from the constructor until `close`. `transports` and `devices`:
    UCX's names; with `devices` None UCX chooses."""

    name: Final = "NIXL"
    is_authenticated: Final = False
    reaches_devices: Final = False
    """False: pages go through host memory, because NIXL's calls for GPU memory were never
    tested."""

    def __init__(self, transports: str, devices: str | None = None) -> None:
        self._name = secrets.token_hex(NAME_BYTES)
        self._agent = NixlAgent(self._name, transports, devices)
        self._memory = RegisteredMemory()
        self._lock = threading.Lock()
        """Lock of the peers."""
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()
        """Peers by metadata; the one read most recently is the last."""

    @property
    def session(self) -> str:
        """Session with the metadata of all memory registered so far."""
        return f"{base64.b64encode(self._agent.metadata).decode()}#{self._name}"

    def register(self, address: int, length_bytes: int) -> None:
        check_range(address, length_bytes)
        self._agent.register(address, length_bytes)
        self._memory.add(address, length_bytes)

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        if not pieces:
            return
        what = describe(self.name, pieces)
        deadline = time.monotonic() + timeout_seconds
        try:
            for piece in pieces:
                self._memory.view(piece.local_address, piece.length_bytes)
            peer = self._take(metadata_of(session))
            try:
                for start in range(0, len(pieces), MAX_DESCRIPTORS):
                    self._read(peer, pieces[start : start + MAX_DESCRIPTORS], deadline)
            except NotRegisteredError:  # not a fault of the connection
                raise
            except TransferError:
                self._forget(peer)
                raise
            finally:
                self._give_back(peer)
        except TimeoutError as error:
            says = f"{what}: not done after {timeout_seconds} s; it may still land"
            raise TransferTimeoutError(says, may_still_land=True) from error
        except TransferError as error:
            says = f"{what}: {error}"
            raise type(error)(says, may_still_land=error.may_still_land) from error

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None:
        """Does nothing: NIXL cannot end a read before its timeout, and until then the read may
        write."""

    def close(self) -> None:
        self._agent.close()

    def _read(self, peer: _Peer, pieces: Sequence[MemoryPiece], deadline_seconds: float) -> None:
        """Reads `pieces`. Raises TimeoutError if the read is not done at `deadline_seconds`."""
        handle = self._agent.start_read(peer.name, pieces)
        pause_seconds = FIRST_PAUSE_SECONDS
        try:
            while not self._agent.is_done(handle):
                if time.monotonic() >= deadline_seconds:
                    raise TimeoutError
                time.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        finally:
            with suppress(TransferError):  # the read's own error takes precedence
                self._agent.release(handle)

    def _take(self, metadata: bytes) -> _Peer:
        """The connection to a peer, made if there is none; does not wait for the peer. Forgets the
        peers that have been idle for longest."""
        with self._lock:
            if (peer := self._peers.get(metadata)) is None:
                peer = _Peer(metadata, self._agent.connect(metadata))
                self._peers[metadata] = peer
            self._peers.move_to_end(metadata)
            peer.reads += 1
            idle = [each for each in self._peers.values() if each.reads == 0]
            for stale in idle[: max(0, len(self._peers) - MAX_PEERS)]:
                self._drop(stale)
            return peer

    def _give_back(self, peer: _Peer) -> None:
        with self._lock:
            peer.reads -= 1

    def _forget(self, peer: _Peer) -> None:
        """Forgets the peer, so that the next read connects again. Other threads' reads of it
        fail."""
        with self._lock:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if self._peers.get(peer.metadata) is peer:
            del self._peers[peer.metadata]
            with suppress(TransferError):  # it is gone already
                self._agent.forget(peer.name)


def metadata_of(session: str) -> bytes:
    """
    Raises:
        OtherEpochError: it is no session of this backend.
    """
    try:
        return base64.b64decode(session.partition("#")[0], validate=True)
    except binascii.Error:
        raise OtherEpochError("not a session of backend NIXL; allowed: METADATA#NAME") from None
