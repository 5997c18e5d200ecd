"""Which of our Mooncake engines reads from which peer, and whether that peer answers.

Mooncake remembers a peer by its address and never forgets it. So an address that returns with
another token gets a new engine. A frozen peer blocks its probe and its first read for a minute, so
each of these runs in a separate thread.

Mooncake keeps connections that the other end has closed until they are used. So when a peer is new,
or a read failed, a byte is read from every peer that may be gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Final

from sluice_runtime.handover.transfer.backend import (
    OtherEpochError,
    PeerUnreachableError,
    TransferError,
    TransferTimeoutError,
)
from sluice_runtime.handover.transfer.mooncake_batch import any_done
from sluice_runtime.handover.transfer.mooncake_gate import GatedEngine

CONTACT_SECONDS: Final = 12.0
"""Longest wait for a peer's answer. A healthy peer answers in milliseconds; a frozen one must not
hold up reads from others."""

logger = logging.getLogger("sluice.handover.mooncake")


@dataclass
class Peer:
    """A peer: one run of a process, with its token, at one address."""

    token: str
    engine: GatedEngine
    past_tokens: frozenset[str] = frozenset()
    opened: bool = False
    """Whether our engine has read from it once."""
    answered: bool = False
    remote_address: int = 0
    """Last known address of memory that the peer has registered."""
    connected: bool = False
    """Whether connections to the peer may be open, at least on our side."""
    contact: Future[int] | None = field(default=None, repr=False)
    """Running probe of the peer; its result is 0 if the peer answered, else Mooncake's error
    code."""


class MooncakePeers:
    """Known peers, each with the engine that reads from it. `start`: makes another engine, with all
    our memory registered. `keeps_connections`: whether engines keep connections open, as over
    TCP."""

    def __init__(
        self,
        engine: GatedEngine,
        start: Callable[[], GatedEngine],
        *,
        keeps_connections: bool = True,
    ) -> None:
        self._engine: GatedEngine | None = engine
        self._start = start
        self._keeps_connections = keeps_connections
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._sweep_wanted = self._sweeping = False

    @property
    def stuck(self) -> bool:
        """Whether a frozen peer blocks reads from other peers."""
        return self._engine is not None and self._engine.stuck

    def engine_for(self, session: str, remote_address: int, timeout_seconds: float) -> GatedEngine:
        """The engine that reads from this peer, once the peer has answered. `remote_address`:
        address of memory that the peer has registered.

        Raises:
            TransferError: the peer does not answer, or another process has its address now.
        """
        address, _, token = session.partition("#")
        with self._lock:
            peer = self._peer(address, token)
            if peer.answered:
                return peer.engine
            if peer.contact is None:
                peer.contact = _contact(peer, address, remote_address)
            contact = peer.contact
        timeout_seconds = min(timeout_seconds, CONTACT_SECONDS)
        try:
            code = contact.result(timeout_seconds)
        except FutureTimeoutError:
            raise TransferTimeoutError(f"no answer after {timeout_seconds:.1f} s") from None
        with self._lock:
            peer.answered = peer.connected = code == 0
            peer.opened = peer.opened or code == 0
            peer.remote_address, peer.contact = remote_address, None
        if code != 0:
            raise PeerUnreachableError(f"it does not answer (Mooncake's code {code})")
        return peer.engine

    def doubt(self, session: str) -> None:
        """Records a failed read: the next read probes the peer first, and dead connections are
        closed."""
        address, _, token = session.partition("#")
        with self._lock:
            if (peer := self._peers.get(address)) is not None and peer.token == token:
                peer.answered = False
            self._close_dead_connections()

    def close(self) -> None:
        """Drops all peers and engines."""
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
        self._close_dead_connections()
        return peer

    def _close_dead_connections(self) -> None:
        """Closes dead connections in a separate thread; called under the lock."""
        self._sweep_wanted = self._keeps_connections
        if self._sweep_wanted and not self._sweeping:
            self._sweeping = True
            threading.Thread(target=self._sweep, name="kv-sweep", daemon=True).start()

    def _sweep(self) -> None:
        try:
            while asked := self._next_to_ask():
                for address, peer in asked:
                    self._ask(address, peer)
        except Exception:
            logger.exception("connections to peers could not be looked after")
            self._sweeping = False

    def _ask(self, address: str, peer: Peer) -> None:
        batches = peer.engine.ask_every_lane(address, peer.remote_address)
        if not any_done(peer.engine, batches) and not peer.engine.stuck:
            with self._lock:
                peer.answered = peer.connected = False

    def _next_to_ask(self) -> list[tuple[str, Peer]]:
        """Peers that may have connections; empty if no check was requested since the last call."""
        with self._lock:
            known = self._peers.items() if self._sweep_wanted else ()
            asked = [(address, peer) for address, peer in known if peer.connected]
            self._sweep_wanted, self._sweeping = False, bool(asked)
            return asked


def _contact(peer: Peer, address: str, remote_address: int) -> Future[int]:
    """Probes a peer in a new thread, because a frozen peer blocks it for a minute; returns the
    pending result."""
    result: Future[int] = Future()
    engine, opened = peer.engine, peer.opened

    def run() -> None:
        try:
            code = engine.probe(address)
            if code == 0 and not opened:
                batch = engine.open(address, remote_address)
                code = 0 if batch and any_done(engine, [batch]) else -1
            result.set_result(code)
        except Exception:
            logger.exception("a peer could not be asked")
            result.set_result(-1)

    threading.Thread(target=run, name="kv-contact", daemon=True).start()
    return result
