"""Backend Mooncake: one-sided reads by its native engine, over TCP or RDMA.

Mooncake has no notion of a process's life, so the session carries a token of ours: an address that
comes back with another token is a new peer.
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
    NotRegisteredError,
    Piece,
    TransferError,
    TransferTimeoutError,
    describe,
)
from sluice_runtime.handover.transfer.mooncake_batch import Outcome, read_pieces
from sluice_runtime.handover.transfer.mooncake_engine import MooncakeEngine, start_engine
from sluice_runtime.handover.transfer.mooncake_peers import MooncakePeers
from sluice_runtime.handover.transfer.registered import RegisteredMemory, check_range

TOKEN_BYTES: Final = 8


class MooncakeBackend:
    """Serves from the constructor until `close`.

    `start` makes a native engine; tests give another one.
    """

    name: Final = "Mooncake"

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
        """Around registering: an engine has all ranges, whenever it was started."""
        engine = self._start()
        self._engines = [engine]
        self._peers = MooncakePeers(engine, self._start_another)
        self._session = f"{host}:{engine.get_rpc_port()}#{secrets.token_hex(TOKEN_BYTES)}"

    @property
    def session(self) -> str:
        return self._session

    def register(self, address: int, length_bytes: int) -> None:
        check_range(address, length_bytes)
        with self._lock:
            for engine in self._engines:
                _register(engine, address, length_bytes)
            self._memory.add(address, length_bytes)

    def read(self, session: str, pieces: Sequence[Piece], timeout_seconds: float) -> None:
        """Can take longer than `timeout_seconds` by as long as its pieces take to end."""
        if not pieces:
            return
        what = describe(self.name, pieces)
        deadline = time.monotonic() + timeout_seconds
        try:
            for piece in pieces:
                self._memory.view(piece.local_address, piece.length_bytes)
            engine = self._peers.engine_for(session, timeout_seconds)
        except TransferError as error:
            raise type(error)(f"{what}: {error}") from error
        outcome = read_pieces(engine, session.partition("#")[0], pieces, deadline)
        if outcome.end != "Done":
            self._peers.doubt(session)
            raise _error(what, outcome, timeout_seconds)

    def interrupt(self, pieces: Sequence[Piece]) -> None:
        """Mooncake ends a read in its time only: until then it may write."""

    def close(self) -> None:
        """Mooncake takes a second to end each engine, and holds the GIL meanwhile."""
        with self._lock:
            for engine in self._engines:
                for first, _ in self._memory.ranges:
                    engine.unregister_memory(first)
            self._engines.clear()
        self._peers.close()

    def _start_another(self) -> MooncakeEngine:
        with self._lock:
            try:
                engine = self._start()
            except StartupError as error:
                raise TransferError(str(error)) from error
            for first, last in self._memory.ranges:
                _register(engine, first, last - first)
            self._engines.append(engine)
            return engine


def _register(engine: MooncakeEngine, address: int, length_bytes: int) -> None:
    if (code := engine.register_memory(address, length_bytes)) != 0:
        raise NotRegisteredError(
            f"Mooncake: cannot register {length_bytes} bytes at {address:#x} (code {code})"
        )


def _error(what: str, outcome: Outcome, timeout_seconds: float) -> TransferError:
    lands = outcome.unsettled > 0
    rest = f"; {outcome.unsettled} pieces may still land" if lands else ""
    if outcome.end == "Late":
        says = f"{what}: not done after {timeout_seconds} s{rest}"
        return TransferTimeoutError(says, may_still_land=lands)
    return TransferError(f"{what}: failed; Mooncake's log says why{rest}", may_still_land=lands)
