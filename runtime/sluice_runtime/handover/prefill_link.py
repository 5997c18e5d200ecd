"""A decode engine's connection to a prefill engine in one epoch, and the rooms in it.

It runs on an event loop. At the first room it connects, sends a hello and then waiting messages. It
ends when the connection does, or after a while without rooms. Knows no other connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sluice_runtime.handover.connection import Connection, ConnectionLimits
from sluice_runtime.handover.framing import (
    MAX_FROM_DECODE_BYTES,
    MAX_FROM_PREFILL_BYTES,
    MAX_GREETING_BYTES,
    decode,
    frame,
    payload_bytes,
)
from sluice_runtime.handover.hello import DecodeIdentity, make_hello, memory_of
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
    Welcome,
)
from sluice_runtime.handover.ports import DecodeEvent, FromPrefill, PeerMemory, RoomLost
from sluice_runtime.wire.messages import PrefillEngine

_log = logging.getLogger("sluice.handover")
_greeting_decoder: Final = msgspec.msgpack.Decoder(Welcome | Refused)
_decoder: Final = msgspec.msgpack.Decoder(Chunk | Finished | Attested | Failed | Ping)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How long a decode engine waits for a connection, and how long it keeps one without rooms."""

    connect_seconds: float = 2.0
    idle_seconds: float = 300.0
    max_sent_bytes: int = MAX_FROM_DECODE_BYTES
    """Largest size of one message."""
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(frozen=True, slots=True)
class Greeter:
    """Inputs of a greeting."""

    us: DecodeIdentity
    unix_seconds: Callable[[], float]
    draw_nonce: Callable[[], str]

    def hello(self, prefill_epoch: str) -> Hello:
        return make_hello(self.us, prefill_epoch, self.unix_seconds(), self.draw_nonce())

    def memory_of(self, hello: Hello, answer: Welcome | Refused) -> PeerMemory:
        return memory_of(self.us, hello, answer)


class PrefillLink:
    """The connection and its rooms. Rooms can be opened and closed at any time; `run` is awaited
    once."""

    def __init__(
        self,
        prefill: PrefillEngine,
        greeter: Greeter,
        put: Callable[[DecodeEvent], None],
        settings: ClientSettings,
    ) -> None:
        self._prefill = prefill
        self._greeter = greeter
        self._put = put
        self._settings = settings
        self._hello = greeter.hello(prefill.epoch)
        self._connection = Connection(
            settings.limits, MAX_GREETING_BYTES, self._answered, self._lost
        )
        self._memory: PeerMemory | None = None
        """Known when the greeting is accepted."""
        self._waiting: list[tuple[int, bytes]] = []
        """Rooms and frames until then."""
        self._rooms: set[int] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._reason = ""
        self.ended = False
        """No room can be opened any more."""

    async def run(self) -> None:
        """Serves until the connection is lost or cannot be made; then each room gets a
        `RoomLost`."""
        reason = await self._until_lost()
        self.ended = True
        self._keep_idle_timer(False)
        for room in self._rooms:
            self._lose_room(room, reason, unasked=self._memory is None)

    def open(self, bootstrap: Bootstrap) -> None:
        framed = frame(bootstrap)
        size_bytes, allowed = payload_bytes(framed), self._settings.max_sent_bytes
        if size_bytes > allowed:
            reason = f"the request has {size_bytes} bytes; allowed: at most {allowed}"
            self._lose_room(bootstrap.room, reason, unasked=False)
            return
        self._rooms.add(bootstrap.room)
        self._keep_idle_timer(False)
        self._write(bootstrap.room, framed)

    def send(self, message: ChunkRead | Received | Cancel) -> None:
        if message.room in self._rooms:
            self._write(message.room, frame(message))

    def close_room(self, room: int) -> None:
        """Closes a room: no further events come, and a request not sent yet is dropped."""
        self._rooms.discard(room)
        self._waiting = [(of, framed) for of, framed in self._waiting if of != room]
        self._keep_idle_timer(not self._rooms)

    def end(self, reason: str) -> None:
        """Makes `run` return soon."""
        self.ended = True
        self._connection.lose(reason)

    async def _until_lost(self) -> str:
        host, port, seconds = self._prefill.host, self._prefill.port, self._settings.connect_seconds
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(lambda: self._connection, host, port)
        except TimeoutError:
            return f"no connection in {seconds:g} s"
        except OSError as error:
            _log.info("%s:%d: cannot connect: %s", host, port, str(error))
            return f"cannot connect: {os.strerror(error.errno or 0)}"
        self._connection.send(frame(self._hello))
        await self._connection.ended
        return self._reason

    def _answered(self, connection: Connection, payload: bytes) -> None:
        memory = self._greeter.memory_of(self._hello, decode(_greeting_decoder, payload))
        self._memory = memory
        connection.established(
            MAX_FROM_PREFILL_BYTES, lambda _, payload: self._said(memory, payload), self._lost
        )
        for _, framed in self._waiting:
            connection.send(framed)
        self._waiting.clear()

    def _said(self, memory: PeerMemory, payload: bytes) -> None:
        message = decode(_decoder, payload)
        if not isinstance(message, Ping) and message.room in self._rooms:
            self._put(FromPrefill(message, memory))

    def _lost(self, connection: Connection, reason: str) -> None:
        self.ended = True
        self._reason = reason

    def _write(self, room: int, framed: bytes) -> None:
        if self._memory is None:
            self._waiting.append((room, framed))
        else:
            self._connection.send(framed)

    def _lose_room(self, room: int, reason: str, *, unasked: bool) -> None:
        prefill = self._prefill
        address = f"{prefill.host}:{prefill.port}"
        _log.info("prefill engine %s at %s: room lost: %s", prefill.name, address, reason)
        where = prefill.name or address
        self._put(RoomLost(room, f"prefill engine {where}: {reason}", unasked))

    def _keep_idle_timer(self, idle: bool) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if idle and not self.ended:
            seconds = self._settings.idle_seconds
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(seconds, self.end, f"unused for {seconds:g} s")
