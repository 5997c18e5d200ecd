"""Carries `messages` between API process and engine process: msgpack over one ZMQ pair.

`ApiLink` binds, `EngineLink` connects; the socket file is in a folder that only this user can
enter. Sending never blocks: the queues have no limit, but credit limits what is sent. Knows neither
what a message means nor which process restarts the other.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
import zmq
import zmq.asyncio

from sluice_runtime.errors import SluiceRuntimeError
from sluice_runtime.wire.messages import (
    PROTOCOL_VERSION,
    ApiReady,
    EngineFailed,
    EngineReady,
    ToApi,
    ToEngine,
)

_CLOSE_MILLISECONDS: Final = 10_000
"""How long `close` may take to deliver an `EngineFailed`: the API process may still be starting."""

_RECONNECT_MILLISECONDS: Final = 20
"""How often the engine tries to connect: the API process may bind later."""

_TURN_MESSAGES: Final = 5
"""Most messages that the API process reads in one turn of its event loop. While streams wait for a
turn, one message a turn would let the others queue here without bound."""

_POLLED_BYTES: Final = 256 * 1024
"""Bytes of messages after which the engine leaves the others for its next turn, so that no step
waits for the prompts of many requests: a token takes up to five bytes."""

_LONG_FRAME_BYTES: Final = 256 * 1024
"""Size from which a frame counts as long: logprobs of a long prompt take megabytes."""

MessageT = TypeVar("MessageT")


class TransportError(SluiceRuntimeError):
    """The other process sent a message that this version does not understand."""


class EngineLink:
    """The engine's end. Not thread-safe: it belongs to one thread at a time."""

    def __init__(self, endpoint: str, wakeup: Wakeup | None = None) -> None:
        """`wakeup`: also ends the wait in `poll` when it is set."""
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        _unbound_queues(self._socket)
        self._socket.connect(endpoint)
        self._wakeup = wakeup
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        if wakeup is not None:
            self._poller.register(wakeup, zmq.POLLIN)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._linger_milliseconds = 0
        self._peer_known = False
        """Whether the API process has sent its protocol version."""

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """The messages that have arrived, as many as fit into one turn and at least one. Waits at
        most `timeout_seconds` for the first one; the wakeup ends the wait.

        Raises:
            TransportError: a message cannot be decoded, or is of another protocol version.
        """
        received: list[ToEngine] = []
        if not self._poller.poll(round(timeout_seconds * 1000)):
            return received
        if self._wakeup is not None:
            self._wakeup.clear()
        left_bytes = _POLLED_BYTES
        while left_bytes > 0:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            left_bytes -= len(frame)
            message = _decode(self._decoder, frame, "API process")
            if isinstance(message, ApiReady):
                _check_version(message.protocol_version, "API process")
                self._peer_known = True
            elif self._peer_known:
                received.append(message)
            else:
                raise TransportError(
                    f"protocol version: the API process has not sent its own; "
                    f"allowed: {PROTOCOL_VERSION}"
                )
        return received

    def send(self, message: ToApi) -> None:
        """Queues the message; never blocks."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        if isinstance(message, EngineFailed):
            self._linger_milliseconds = _CLOSE_MILLISECONDS

    def close(self) -> None:
        """Closes at once, or once an `EngineFailed` has been delivered."""
        self._context.destroy(linger=self._linger_milliseconds)


class ApiLink:
    """The API process's end. Belongs to the event loop it was made in."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        _unbound_queues(self._socket)
        self._without_loop: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToApi] = msgspec.msgpack.Decoder(ToApi)
        self._greeted = False

    async def messages(self) -> AsyncIterator[ToApi]:
        """Messages in order; ends when the engine process has exited and all its messages are read.

        Raises:
            TransportError: a message cannot be decoded, or is of another protocol version.
        """
        gone = asyncio.ensure_future(self._monitor.recv_multipart())
        received = asyncio.ensure_future(self._socket.recv())
        try:
            while True:
                await asyncio.wait({received, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not received.done():
                    break
                yield self._decode(received.result())
                for frame in islice(self._arrived(), _TURN_MESSAGES - 1):
                    yield self._decode(frame)
                received = asyncio.ensure_future(self._socket.recv())
            received.cancel()
            for frame in self._arrived():
                yield self._decode(frame)
        finally:
            gone.cancel()
            received.cancel()

    def send(self, message: ToEngine) -> None:
        """Queues the message; never blocks. A message to an engine that has exited is dropped."""
        self._greeted = self._greeted or self._queue(ApiReady(PROTOCOL_VERSION))
        if self._greeted:
            self._queue(message)

    def _queue(self, message: ToEngine) -> bool:
        """Queues a message; returns whether an engine is connected."""
        sent = asyncio.ensure_future(self._socket.send(self._encoder.encode(message), zmq.NOBLOCK))
        try:
            sent.result()
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Closes at once and drops queued messages, which the engine no longer needs."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._context.destroy(linger=0)

    def _arrived(self) -> Iterator[bytes]:
        """The frames that have arrived; ends where a reader would have to wait."""
        with suppress(zmq.Again):
            while True:
                yield self._without_loop.recv(zmq.NOBLOCK)

    def _decode(self, frame: bytes) -> ToApi:
        message = _decode(self._decoder, frame, "engine process")
        if isinstance(message, EngineReady):
            _check_version(message.protocol_version, "engine process")
        return message


def _check_version(spoken: int, sender: str) -> None:
    if spoken != PROTOCOL_VERSION:
        raise TransportError(
            f"protocol version: the {sender} speaks {spoken}; allowed: {PROTOCOL_VERSION}"
        )


def _unbound_queues(socket: zmq.Socket[Any]) -> None:
    socket.set_hwm(0)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)


def _decode(decoder: msgspec.msgpack.Decoder[MessageT], frame: bytes, sender: str) -> MessageT:
    try:
        with _no_collection() if len(frame) >= _LONG_FRAME_BYTES else nullcontext():
            return decoder.decode(frame)
    except msgspec.DecodeError as error:
        raise TransportError(
            f"a message of the {sender} ({len(frame)} bytes) cannot be decoded: {error}"
        ) from None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses the garbage collector: while a long message is decoded, it finds nothing and triples
    the time. Other threads are not affected, because the decoder holds the GIL."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Wakeup:
    """A file descriptor for a poller that is readable from `set` until `clear`."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """Wakes the waiter, if there is one; may be called from any thread."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Makes the descriptor unreadable again. Call it before looking for the cause of the
        wakeup."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Closes the descriptor; must not run concurrently with `set`."""
        os.close(self._descriptor)
