"""Frames come out as they went in, however the stream is cut; too large ones do not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.handover.framing import FrameReader, FramingError, decode, frame
from sluice_runtime.handover.messages import Attested, Cancel, Received, ToPrefill


@given(rooms=st.lists(st.integers(0, 2**63 - 1)), cuts=st.lists(st.integers(1, 40), min_size=1))
def test_messages_survive_any_cut_of_the_stream(rooms: list[int], cuts: list[int]) -> None:
    stream = b"".join(frame(Cancel(room, "why")) for room in rooms)
    reader, decoder, read = FrameReader(100), msgspec.msgpack.Decoder(ToPrefill), []
    sizes = iter(cuts * (len(stream) + 1))
    while stream:
        size = next(sizes)
        read += [decode(decoder, payload) for payload in reader.feed(stream[:size])]
        stream = stream[size:]
    assert read == [Cancel(room, "why") for room in rooms]


def test_a_larger_limit_holds_for_what_came_with_the_greeting() -> None:
    reader = FrameReader(30)
    frames = reader.feed(frame(Received(1)) + frame(Cancel(1, "x" * 100)))
    next(frames)
    reader.max_bytes = 200
    assert len(next(frames)) > 100


def test_a_frame_above_the_limit_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(FramingError, match="a frame of 21 bytes; allowed: at most 20"):
        list(FrameReader(20).feed((21).to_bytes(4, "big")))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        msgspec.msgpack.encode({}),
        b"\x81\xa4type\xa1\xff",
        b"\x83\xa4type\xa6Cancel\xa4room\x01\xa5error\xa1\xff",
    ],
)
def test_what_is_no_message_is_a_framing_error(payload: bytes) -> None:
    with pytest.raises(FramingError, match="not a message of the hand-over"):
        decode(msgspec.msgpack.Decoder(ToPrefill), payload)


def test_a_message_of_the_other_direction_is_a_framing_error() -> None:
    with pytest.raises(FramingError, match="Attested"):
        decode(msgspec.msgpack.Decoder(ToPrefill), frame(Attested(1))[4:])


def test_a_message_nested_too_deep_is_a_framing_error() -> None:
    deep = b"\x82\xa4type\xa7Lenient\xa1x" + b"\x91" * 100_000
    with pytest.raises(FramingError, match="recursion"):
        decode(msgspec.msgpack.Decoder(_Lenient), deep)


class _Lenient(msgspec.Struct, tag="Lenient"):
    """Skips what it does not know, as a greeting of another version is read."""
