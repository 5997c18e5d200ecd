"""The bootstrap endpoint of a prefill engine, at which decode engines connect, say hello, and open
rooms.

The engine's loop calls `PrefillServer`; the connections run in a separate thread. Does not know
which peer a room belongs to: the loop checks that.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from sluice_contract.cluster.ports import BOOTSTRAP

from sluice_runtime.handover.connection import Connection, ConnectionLimits
from sluice_runtime.handover.framing import (
    MAX_FROM_DECODE_BYTES,
    MAX_FROM_PREFILL_BYTES,
    MAX_GREETING_BYTES,
    decode,
    frame,
    payload_bytes,
)
from sluice_runtime.handover.hello import (
    PrefillIdentity,
    SeenNonces,
    make_welcome,
    read_hello,
    refusal_of,
)
from sluice_runtime.handover.loop_thread import LoopThread
from sluice_runtime.handover.messages import (
    Attested,
    Bootstrap,
    Cancel,
    Chunk,
    ChunkRead,
    Failed,
    Finished,
    Hello,
    Ping,
    Received,
    Refused,
)
from sluice_runtime.handover.ports import FromDecode, PeerLost, PrefillEvent
from sluice_runtime.handover.rooms import HeldRooms

_log = logging.getLogger(__name__)
_decoder: Final = msgspec.msgpack.Decoder(Bootstrap | ChunkRead | Received | Cancel | Ping)
Answer = Chunk | Finished | Attested | Failed


@dataclass(frozen=True, slots=True)
class BootstrapSettings:
    """Where a prefill engine listens, and how many connections it accepts."""

    host: str
    port: int = BOOTSTRAP
    """Port to listen on; 0: a free port."""
    max_peers: int = 1024
    max_strangers: int = 64
    """Most connections without an accepted hello. One more ends the oldest, since decode engines
    say hello at once."""
    max_sent_bytes: int = MAX_FROM_PREFILL_BYTES
    """Largest size of one message."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


class PrefillServer:
    """A `PrefillPort` that listens from the constructor until `close`."""

    def __init__(
        self,
        us: PrefillIdentity,
        wake: Callable[[], None],
        settings: BootstrapSettings,
        unix_seconds: Callable[[], float],
    ) -> None:
        """`wake`: called in another thread when there are events.

        Raises:
            OSError: it cannot listen on the address.
        """
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family)
        self.port: Final[int] = listener.getsockname()[1]
        self._settings = settings
        self._thread: LoopThread[PrefillEvent] = LoopThread("handover-server", wake)
        self._held = HeldRooms()
        self._peers = _Peers(us, self._held, self._thread.put, settings, unix_seconds)
        self._thread.start(lambda stop: self._peers.serve(listener, stop))

    @property
    def failure(self) -> str | None:
        """Reason why the thread died; None while it runs. `events` raises it."""
        return self._thread.failure

    def events(self) -> list[PrefillEvent]:
        """Events since the last call, in order.

        Raises:
            HandoverThreadError: the thread died; the engine cannot continue.
        """
        return self._thread.events()

    def send(self, peer: int, message: Answer) -> None:
        """Sends a message without waiting; drops it if the connection is gone. A peer that reads
        nothing loses its connection. A message too large for a frame ends its room on both
        sides."""
        self._thread.call(self._peers.send, peer, message)

    def hold(self, room: int, peer: int) -> None:
        """Makes the connections' thread answer this room's `Received` at once."""
        self._held.hold(room, peer)

    def release_hold(self, room: int) -> None:
        """Ends the hold, so that the room's `Received` is no longer answered here."""
        self._held.release_hold(room)

    def close(self) -> None:
        """Ends all connections and the thread."""
        self._thread.close()


class _Peers:
    """The connections, in the thread."""

    def __init__(
        self,
        us: PrefillIdentity,
        held: HeldRooms,
        put: Callable[[PrefillEvent], None],
        settings: BootstrapSettings,
        unix_seconds: Callable[[], float],
    ) -> None:
        self._us = us
        self._held = held
        self._put = put
        self._settings = settings
        self._unix_seconds = unix_seconds
        self._nonces = SeenNonces()
        self._numbers = itertools.count(1)
        self._strangers: dict[Connection, None] = {}
        """The oldest first."""
        self._by_number: dict[int, Connection] = {}

    async def serve(self, listener: socket.socket, stop: Awaitable[None]) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._accepted, sock=listener)
        try:
            await stop
        finally:
            server.close()
            connections = [*self._strangers, *self._by_number.values()]
            for connection in connections:
                connection.lose("this engine ends")
            await asyncio.gather(*(connection.ended for connection in connections))

    def send(self, peer: int, message: Answer) -> None:
        connection = self._by_number.get(peer)
        if connection is None:
            return
        framed = frame(message)
        if payload_bytes(framed) > self._settings.max_sent_bytes:
            error = (
                f"the prefill engine's {type(message).__name__} has {payload_bytes(framed)} bytes; "
                f"allowed: at most {self._settings.max_sent_bytes}"
            )
            framed = frame(Failed(message.room, error, "invalid"))
            self._put(FromDecode(peer, Cancel(message.room, error)))
        connection.send(framed)

    def _accepted(self) -> Connection:
        connection = Connection(
            self._settings.limits, MAX_GREETING_BYTES, self._greeted, self._stranger_lost
        )
        self._strangers[connection] = None
        if len(self._strangers) > (allowed := self._settings.max_strangers):
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]  # others may be accepted before its loss is reported
            oldest.lose(f"more than {allowed} connections have not greeted")
        return connection

    def _greeted(self, connection: Connection, payload: bytes) -> None:
        hello = self._checked(payload)
        if isinstance(hello, Refused):
            connection.refuse(hello, f"{hello.reason}: {hello.error}")
            return
        self._strangers.pop(connection, None)
        peer = next(self._numbers)
        self._by_number[peer] = connection
        _log.info("decode engine %s: connected as peer %d, epoch %s", hello.name, peer, hello.epoch)
        connection.send(frame(make_welcome(self._us, hello)))
        connection.established(
            MAX_FROM_DECODE_BYTES,
            lambda _, payload: self._said(peer, payload),
            lambda _, reason: self._peer_lost(peer, hello.name, reason),
        )

    def _checked(self, payload: bytes) -> Hello | Refused:
        hello = read_hello(payload)
        if isinstance(hello, Refused):
            return hello
        now_unix = self._unix_seconds()
        if refusal := refusal_of(self._us, hello, now_unix):
            return refusal
        if not self._nonces.add(hello.nonce, now_unix):
            return Refused("Replayed", "this greeting has been used before")
        if len(self._by_number) >= self._settings.max_peers:
            allowed = self._settings.max_peers
            return Refused("TooManyPeers", f"{allowed} decode engines are connected already")
        return hello

    def _stranger_lost(self, connection: Connection, reason: str) -> None:
        self._strangers.pop(connection, None)
        _log.info("a connection from %s was not accepted: %s", connection.address, reason)

    def _said(self, peer: int, payload: bytes) -> None:
        message = decode(_decoder, payload)
        if isinstance(message, Received) and self._held.attest(message.room, peer):
            self.send(peer, Attested(message.room))
        if not isinstance(message, Ping):
            self._put(FromDecode(peer, message))

    def _peer_lost(self, peer: int, name: str, reason: str) -> None:
        del self._by_number[peer]
        _log.info("decode engine %s: peer %d lost: %s", name, peer, reason)
        self._put(PeerLost(peer, f"decode engine {name}: {reason}"))
