"""Frames of the control connection: 4 bytes of length, big-endian, then a message as msgpack.

Every frame has a size limit, so that a peer cannot make us use unlimited memory. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from sluice_runtime.handover.messages import HandoverMessage

MAX_GREETING_BYTES: Final = 64 << 10
"""Largest frame, in bytes, before the hello is accepted: its sender may not have the key."""
MAX_FROM_DECODE_BYTES: Final = 32 << 20
"""Limit of a frame from a decode engine: a prompt and its settings."""
MAX_FROM_PREFILL_BYTES: Final = 64 << 20
"""Limit of a frame from a prefill engine: the logprobs of a long prompt."""
_LENGTH_BYTES: Final = 4

T = TypeVar("T")


class FramingError(Exception):
    """A frame or message that is not valid: the connection ends."""


class FrameReader:
    """Cuts a stream of bytes into payloads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        """Limit of a payload; grows when the greeting is accepted."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Payloads that `data` completes. Each is yielded before the next length is checked, so
        that a limit raised after the hello holds for frames that came with it.

        Raises:
            FramingError: a length above `max_bytes`.
        """
        self._buffer += data
        while (length := self._length()) is not None:
            end = _LENGTH_BYTES + length
            if len(self._buffer) < end:
                return
            payload = bytes(memoryview(self._buffer)[_LENGTH_BYTES:end])
            del self._buffer[:end]
            yield payload

    def _length(self) -> int | None:
        if len(self._buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
        if length > self.max_bytes:
            raise FramingError(f"a frame of {length} bytes; allowed: at most {self.max_bytes}")
        return length


def frame(message: HandoverMessage) -> bytes:
    """The message as a frame, as bytes on the wire."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


def payload_bytes(framed: bytes) -> int:
    """Bytes of a framed payload that a `FrameReader` counts against its limit."""
    return len(framed) - _LENGTH_BYTES


def decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    """The message of a payload.

    Raises:
        FramingError: the payload is not a message that `decoder` knows.
    """
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise FramingError(f"not a message of the hand-over: {error}") from None
