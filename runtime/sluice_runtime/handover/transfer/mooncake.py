"""Backend Mooncake: one-sided reads by its native engine, over TCP or RDMA.

Everyone who reaches its ports can read and write the registered memory. Mooncake cannot tell a
restarted process from the old one, so the session carries a token that only our code checks: an
address that returns with another token is a new peer. While one engine is stuck with a frozen peer,
a second one reads.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from sluice_runtime.errors import StartupError
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    TransferError,
    TransferTimeoutError,
    describe,
)
from sluice_runtime.handover.transfer.mooncake_batch import BatchOutcome, read_pieces
from sluice_runtime.handover.transfer.mooncake_engine import MooncakeEngine, start_engine
from sluice_runtime.handover.transfer.mooncake_gate import GatedEngine
from sluice_runtime.handover.transfer.mooncake_peers import MooncakePeers
from sluice_runtime.handover.transfer.registered import RegisteredMemory, check_range

TOKEN_BYTES: Final = 8


class MooncakeBackend:
    """Serves from the constructor until `close`.

    `start`: makes a native engine; tests pass a replacement.
    """

    name: Final = "Mooncake"
    is_authenticated: Final = False

    def __init__(
        self,
        host: str,
        protocol: str = "tcp",
        device: str | None = None,
        start: Callable[[], MooncakeEngine] | None = None,
    ) -> None:
        self._start = start or partial(start_engine, host, protocol, device)
        self._memory = RegisteredMemory()
        self._lock = threading.Lock()
        """Lock of registering: an engine has all ranges, whenever it was started."""
        self._starting = threading.Lock()
        """Lock of starting the second engine."""
        engine = GatedEngine(self._start())
        self._engines = [engine]
        self._keeps_connections = protocol == "tcp"
        self.reaches_devices: Final = protocol == "rdma"
        self._peers = [self._peers_of(engine)]
        """Peers of the first engine; and of a second one, once the first was stuck."""
        self._session = f"{host}:{engine.port}#{secrets.token_hex(TOKEN_BYTES)}"

    @property
    def session(self) -> str:
        return self._session

    def register(self, address: int, length_bytes: int) -> None:
        check_range(address, length_bytes)
        with self._lock:
            for engine in self._engines:
                engine.register(address, length_bytes)
            self._memory.add(address, length_bytes)

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        """Reads `pieces`. May exceed `timeout_seconds` by the time that the pieces take to end."""
        if not pieces:
            return
        what = describe(self.name, pieces)
        deadline = time.monotonic() + timeout_seconds
        try:
            for piece in pieces:
                self._memory.view(piece.local_address, piece.length_bytes)
            outcome = self._read(self._not_stuck(), session, pieces, deadline)
            if outcome == BatchOutcome("Failed") and self._peers[0].stuck:
                outcome = self._read(self._not_stuck(), session, pieces, deadline)
        except TransferError as error:
            raise type(error)(f"{what}: {error}") from error
        if outcome.end != "Done":
            raise _error(what, outcome, timeout_seconds)

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None:
        """Does nothing: Mooncake cannot end a read early, and until its end the read may write."""

    def close(self) -> None:
        """Ends all engines. Mooncake takes a second for each, and holds the GIL meanwhile."""
        with self._lock:
            for engine in self._engines:
                for first, _ in self._memory.ranges:
                    engine.unregister(first)
            self._engines.clear()
            for peers in self._peers:
                peers.close()

    def _read(
        self, peers: MooncakePeers, session: str, pieces: Sequence[MemoryPiece], deadline: float
    ) -> BatchOutcome:
        seconds = max(0.0, deadline - time.monotonic())
        engine = peers.engine_for(session, pieces[0].remote_address, seconds)
        outcome = read_pieces(engine, session.partition("#")[0], pieces, deadline)
        if outcome.end != "Done":
            peers.doubt(session)
        return outcome

    def _not_stuck(self) -> MooncakePeers:
        """Peers of the first engine or, if it is stuck, of a second one: its first contact with a
        peer shows whether the peer is frozen."""
        if not self._peers[0].stuck:
            return self._peers[0]
        with self._starting:
            if len(self._peers) == 1:
                self._peers.append(self._peers_of(self._start_another()))
            return self._peers[1]

    def _peers_of(self, engine: GatedEngine) -> MooncakePeers:
        return MooncakePeers(engine, self._start_another, keeps_connections=self._keeps_connections)

    def _start_another(self) -> GatedEngine:
        with self._lock:
            try:
                engine = GatedEngine(self._start())
            except StartupError as error:
                raise TransferError(str(error)) from error
            for first, last in self._memory.ranges:
                engine.register(first, last - first)
            self._engines.append(engine)
            return engine


def _error(what: str, outcome: BatchOutcome, timeout_seconds: float) -> TransferError:
    lands = outcome.unsettled > 0
    rest = f"; {outcome.unsettled} pieces may still land" if lands else ""
    if outcome.end == "Late":
        says = f"{what}: not done after {timeout_seconds} s{rest}"
        return TransferTimeoutError(says, may_still_land=lands)
    return TransferError(f"{what}: failed; Mooncake's log says why{rest}", may_still_land=lands)
