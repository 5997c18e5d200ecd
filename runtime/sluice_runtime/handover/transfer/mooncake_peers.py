"""Which of our Mooncake engines reads from which peer, and whether that peer answers.

Mooncake remembers a peer by its address and never forgets it, so an address that has come back with
another token gets an engine that has never heard of it. Its first contact with a peer holds a lock
that all reads need, for a minute when the peer is frozen: so each peer is probed first, in a thread
of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field

from sluice_runtime.handover.transfer.backend import (
    OtherEpochError,
    PeerUnreachableError,
    TransferError,
    TransferTimeoutError,
)
from sluice_runtime.handover.transfer.mooncake_engine import MooncakeEngine

logger = logging.getLogger("sluice.handover.mooncake")


@dataclass
class Peer:
    """One life of a process at one address."""

    token: str
    engine: MooncakeEngine
    past_tokens: frozenset[str] = frozenset()
    answered: bool = False
    probe: Future[int] | None = field(default=None, repr=False)


class MooncakePeers:
    """`start`: makes one more engine, with all of our memory registered."""

    def __init__(self, engine: MooncakeEngine, start: Callable[[], MooncakeEngine]) -> None:
        self._engine: MooncakeEngine | None = engine
        self._start = start
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}

    def engine_for(self, session: str, timeout_seconds: float) -> MooncakeEngine:
        """The engine that reads from this peer, which has answered.

        Raises:
            TransferError: it does not answer, or its address is another's now.
        """
        address, _, token = session.partition("#")
        with self._lock:
            peer = self._peer(address, token)
            if peer.answered:
                return peer.engine
            if peer.probe is None:
                peer.probe = _probe(peer.engine, address)
            probe = peer.probe
        try:
            code = probe.result(timeout_seconds)
        except FutureTimeoutError:
            raise TransferTimeoutError(f"no answer after {timeout_seconds:.1f} s") from None
        with self._lock:
            peer.answered, peer.probe = code == 0, None
        if code != 0:
            raise PeerUnreachableError(f"it does not answer (Mooncake's code {code})")
        return peer.engine

    def doubt(self, session: str) -> None:
        """After a failed read: the next one probes again."""
        address, _, token = session.partition("#")
        with self._lock:
            if (peer := self._peers.get(address)) is not None and peer.token == token:
                peer.answered = False

    def close(self) -> None:
        """Lets go of all engines."""
        with self._lock:
            self._engine = None
            self._peers.clear()

    def _peer(self, address: str, token: str) -> Peer:
        """Called under the lock."""
        if self._engine is None:
            raise TransferError("the backend is closed")
        known = self._peers.get(address)
        if known is None:
            peer = Peer(token, self._engine)
        elif known.token == token:
            return known
        elif token in known.past_tokens:
            raise OtherEpochError("another process has this address now")
        else:
            peer = Peer(token, self._start(), known.past_tokens | {known.token})
        self._peers[address] = peer
        return peer


def _probe(engine: MooncakeEngine, address: str) -> Future[int]:
    """A thread of its own for each: a frozen peer keeps it for a minute."""
    result: Future[int] = Future()

    def run() -> None:
        try:
            result.set_result(engine.send_probe(address))
        except Exception:
            logger.exception("a probe failed")
            result.set_result(-1)

    threading.Thread(target=run, name="kv-probe", daemon=True).start()
    return result
