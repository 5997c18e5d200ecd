"""One control connection, on either side: frames in and out, pings, and the detection of a dead
peer.

It runs on an event loop and never waits. Knows no hello and no room.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from sluice_runtime.handover.framing import FrameReader, FramingError, frame
from sluice_runtime.handover.hello import GreetingError
from sluice_runtime.handover.messages import HandoverMessage, Ping

_PING: Final = frame(Ping())


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a peer may be silent, and how much it may leave unread."""

    greeting_seconds: float = 5.0
    """Seconds from the connection to the accepted hello."""
    ping_seconds: float = 5.0
    """Seconds without sending after which a `Ping` is sent."""
    silence_seconds: float = 12.0
    """Seconds of silence, two missed pings, after which the peer counts as gone."""
    max_unsent_bytes: int = 256 << 20
    """Most bytes that a peer may leave unread before it is cut off: four of the largest frames."""


class Connection(asyncio.Protocol):
    """Calls `on_payload` for each frame, and `on_lost` exactly once, with the reason."""

    def __init__(
        self,
        limits: ConnectionLimits,
        max_frame_bytes: int,
        on_payload: Callable[[Connection, bytes], None],
        on_lost: Callable[[Connection, str], None],
    ) -> None:
        self._limits = limits
        self._frames = FrameReader(max_frame_bytes)
        self._on_payload = on_payload
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._reason: str | None = None
        self.address = ""
        self._sent = self._received = self._loop.time()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.address = str(transport.get_extra_info("peername"))
        if self._reason is not None:
            self._transport.abort()
            return
        _set_options(transport.get_extra_info("socket"), self._limits)
        seconds = self._limits.greeting_seconds
        self._timer = self._loop.call_later(
            seconds, self.lose, f"no greeting was accepted in {seconds:g} s"
        )

    def established(
        self,
        max_frame_bytes: int,
        on_payload: Callable[[Connection, bytes], None],
        on_lost: Callable[[Connection, str], None],
    ) -> None:
        """Called when the hello was accepted: allows frames of `max_frame_bytes`, replaces the
        callbacks, and starts pings."""
        self._frames.max_bytes = max_frame_bytes
        self._on_payload, self._on_lost = on_payload, on_lost
        self._check_silence()

    def send(self, framed: bytes) -> None:
        """Sends a frame; drops it if the connection is lost."""
        if self._reason is not None or self._transport is None:
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes + len(framed) > self._limits.max_unsent_bytes:
            self.lose(
                f"{unsent_bytes} bytes are unread; "
                f"allowed: at most {self._limits.max_unsent_bytes} with what is sent next"
            )
            return
        self._sent = self._loop.time()
        self._transport.write(framed)

    def refuse(self, message: HandoverMessage, reason: str) -> None:
        """Sends a last message and closes the connection; `reason`: for `on_lost`."""
        self.send(frame(message))
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.close()

    def lose(self, reason: str) -> None:
        """Ends the connection at once; `on_lost` follows."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received = self._loop.time()
        try:
            for payload in self._frames.feed(data):
                if self._reason is not None:
                    return
                self._on_payload(self, payload)
        except (FramingError, GreetingError) as error:
            self.lose(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        reason = self._reason or (str(exc) if exc else "closed by the peer")
        self._reason = reason
        self.ended.set_result(None)
        self._on_lost(self, reason)

    def _check_silence(self) -> None:
        """Sends a ping or ends the connection if due, and schedules the next check."""
        if self._timer is not None:
            self._timer.cancel()
        now, limits = self._loop.time(), self._limits
        if now >= self._received + limits.silence_seconds:
            self.lose(f"silent for {limits.silence_seconds:g} s")
            return
        if now >= self._sent + limits.ping_seconds:
            self.send(_PING)
        due = min(self._sent + limits.ping_seconds, self._received + limits.silence_seconds)
        self._timer = self._loop.call_at(due, self._check_silence)


def _set_options(peer: socket.socket, limits: ConnectionLimits) -> None:
    """Makes the kernel, too, end a connection whose peer does not answer."""
    silence_seconds = max(1, round(limits.silence_seconds))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(limits.ping_seconds)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(limits.ping_seconds)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_seconds * 1000)
