"""Carries `messages` between API process and engine process: msgpack over one ZMQ pair.

`ApiLink` binds, `EngineLink` connects; the socket file lies in a folder only this user can enter.
No side ever waits to send: queues are unbounded here because credit bounds what is in them. Knows
neither what a message means nor who restarts whom.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import zmq
import zmq.asyncio

from sluice_runtime.errors import SluiceRuntimeError
from sluice_runtime.messages import PROTOCOL_VERSION, EngineFailed, EngineReady, ToApi, ToEngine

_LAST_WORDS_MILLISECONDS: Final = 10_000
"""How long `close` may take to hand over an `EngineFailed`: the API process may still start."""

_RECONNECT_MILLISECONDS: Final = 20
"""How often the engine looks for the API process, which may bind after it."""

_LONG_FRAME_BYTES: Final = 256 * 1024
"""Scores of a long prompt have megabytes."""

MessageT = TypeVar("MessageT")


class TransportError(SluiceRuntimeError):
    """The other process said something this version does not understand."""


@contextmanager
def private_endpoint() -> Iterator[str]:
    """A ZMQ endpoint in a folder of its own (mode 0700), which is removed afterwards."""
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = runtime_folder if os.access(runtime_folder, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="sluice-", dir=parent))
    try:
        yield f"ipc://{folder}/engine.sock"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class EngineLink:
    """The engine's end. Not thread-safe: it belongs to one thread at a time."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        _unbound_queues(self._socket)
        self._socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._linger_milliseconds = 0

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Every message that has come, after waiting `timeout_seconds` at most for the first.

        Raises:
            TransportError: a message cannot be decoded.
        """
        received: list[ToEngine] = []
        if not self._socket.poll(round(timeout_seconds * 1000)):
            return received
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return received
            received.append(_decode(self._decoder, frame, "API process"))

    def send(self, message: ToApi) -> None:
        """Queues the message; never blocks."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        if isinstance(message, EngineFailed):
            self._linger_milliseconds = _LAST_WORDS_MILLISECONDS

    def close(self) -> None:
        """Closes: at once when asked to stop, else when its `EngineFailed` has been handed over."""
        self._context.destroy(linger=self._linger_milliseconds)


class ApiLink:
    """The API process's end. Belongs to the event loop it was made in."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        _unbound_queues(self._socket)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToApi] = msgspec.msgpack.Decoder(ToApi)

    async def messages(self) -> AsyncIterator[ToApi]:
        """Messages in order; ends when the engine's process has gone and all it said is read.

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
                received = asyncio.ensure_future(self._socket.recv())
            received.cancel()
            for frame in await self._rest():
                yield self._decode(frame)
        finally:
            gone.cancel()
            received.cancel()

    def send(self, message: ToEngine) -> None:
        """Queues the message; never blocks. A message to an engine that has gone is dropped."""
        sent = asyncio.ensure_future(self._socket.send(self._encoder.encode(message), zmq.NOBLOCK))
        with suppress(zmq.Again):
            sent.result()

    def close(self) -> None:
        """Closes at once; the engine needs nothing that is still queued."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._context.destroy(linger=0)

    async def _rest(self) -> list[bytes]:
        frames: list[bytes] = []
        while True:
            try:
                frames.append(await self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return frames

    def _decode(self, frame: bytes) -> ToApi:
        message = _decode(self._decoder, frame, "engine process")
        if isinstance(message, EngineReady) and message.protocol_version != PROTOCOL_VERSION:
            raise TransportError(
                f"protocol version: the engine process speaks {message.protocol_version}; "
                f"allowed: {PROTOCOL_VERSION}"
            )
        return message


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
    """Among the new objects of a long message there is no garbage, and looking for it as they come
    takes twice as long as making them. Nothing else runs meanwhile: a decoder never lets go."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
