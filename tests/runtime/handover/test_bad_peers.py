"""Peers that are refused, silent, deaf or talk nonsense: each ends itself only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sluice_runtime.handover.connection import ConnectionLimits
from sluice_runtime.handover.framing import MAX_GREETING_BYTES, frame
from sluice_runtime.handover.hello import make_hello, make_welcome
from sluice_runtime.handover.messages import (
    HANDOVER_VERSION,
    Attested,
    Finished,
    Hello,
    Ping,
    Refused,
    Welcome,
)
from sluice_runtime.handover.ports import FromDecode, PeerLost, RoomLost

from tests.examples import examples
from tests.runtime.handover.conversing import (
    DECODE,
    NOW,
    PREFILL,
    QUICK,
    RawPeer,
    Server,
    bootstrap,
    connecting,
    other_print,
    raw_client,
    raw_listener,
    serving,
)


def hello(nonce: str = "raw", **changes: Any) -> Hello:
    return make_hello(replace(DECODE, **changes), PREFILL.epoch, NOW, nonce)


def greet(peer: RawPeer, nonce: str = "raw") -> None:
    peer.send(hello(nonce))
    assert isinstance(peer.read(), Welcome)


@contextmanager
def accepted(listener: socket.socket) -> Iterator[RawPeer]:
    """The connection that a decode engine has opened to a raw listener."""
    connection, _ = listener.accept()
    with connection:
        yield RawPeer(connection)


def served(server: Server, nonce: str) -> bool:
    """Whether a peer is still accepted and heard."""
    with raw_client(server) as peer:
        greet(peer, nonce)
        peer.send(bootstrap(1))
        [event] = server.take()
        assert isinstance(event, FromDecode)
        assert event.message == bootstrap(1)
        peer.socket.close()
        return isinstance(server.take()[0], PeerLost)


@pytest.mark.parametrize(
    ("us", "reason", "error"),
    [
        (
            replace(DECODE, keys=lambda: (b"x" * 32,)),
            "NotSigned",
            "not signed with this service's key",
        ),
        (other_print(page_size_tokens=32), "FingerprintsDiffer", "pageSizeTokens: 16 and 32"),
        (other_print(kv_dtype="float32"), "FingerprintsDiffer", "kvDtype: bfloat16 and float32"),
    ],
)
def test_a_refused_greeting_ends_the_room_with_the_reason(us: Any, reason: str, error: str) -> None:
    with serving() as prefill, connecting(us) as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert f"refused the greeting: {reason}: " in lost.error
        assert error in lost.error
        assert served(prefill, "next")


def test_a_greeting_that_is_too_old_is_refused() -> None:
    with serving(now=NOW + 61) as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert "refused the greeting: OutOfDate: the greeting is 61 s old" in lost.error


def test_an_engine_that_was_restarted_in_place_is_another() -> None:
    with serving(replace(PREFILL, epoch="prefill-2")) as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert "OtherEpoch: epoch prefill-1 is meant; this engine's is prefill-2" in lost.error
        assert lost.unasked


def test_another_version_is_refused_with_both() -> None:
    with serving() as prefill, raw_client(prefill) as peer:
        other = HANDOVER_VERSION + 1
        payload = msgspec.msgpack.encode({"type": "Hello", "version": other, "more": 1})
        peer.socket.sendall(len(payload).to_bytes(4, "big") + payload)
        answer = peer.read()
        assert isinstance(answer, Refused)
        known = f"this prefill engine has {HANDOVER_VERSION}"
        assert answer.error == f"version of the hand-over: {other}; {known}"
        assert peer.at_end()


def test_a_copied_greeting_is_refused() -> None:
    with serving() as prefill, raw_client(prefill) as first, raw_client(prefill) as second:
        greet(first)
        second.send(hello())
        answer = second.read()
        assert isinstance(answer, Refused)
        assert answer.reason == "Replayed"


def test_nothing_after_a_refused_greeting_is_heard() -> None:
    with serving() as prefill, raw_client(prefill) as peer:
        stranger = hello(keys=lambda: (b"x" * 32,))
        peer.socket.sendall(frame(stranger) + frame(hello()) + frame(bootstrap(9)))
        assert peer.at_end()
        assert served(prefill, "next")


def test_a_greeting_makes_room_for_the_next_stranger() -> None:
    with serving(max_strangers=1) as prefill, raw_client(prefill) as first:
        greet(first, "first")
        with raw_client(prefill) as second:
            greet(second, "second")


def test_a_peer_that_is_gone_makes_room_for_another() -> None:
    with serving(max_peers=1) as prefill:
        assert served(prefill, "first")
        assert served(prefill, "second")


def test_connections_are_bounded() -> None:
    with serving(max_peers=1) as prefill, raw_client(prefill) as first:
        greet(first, "first")
        with raw_client(prefill) as second:
            second.send(hello("second"))
            answer = second.read()
            assert isinstance(answer, Refused)
            assert answer.reason == "TooManyPeers"


def test_connections_that_do_not_greet_are_bounded() -> None:
    with serving(max_strangers=0) as prefill, raw_client(prefill) as peer:
        assert peer.at_end()
    assert prefill.port.failure is None


def test_idle_connections_do_not_keep_a_decode_engine_out() -> None:
    with serving() as prefill, ExitStack() as idle:
        peers = [idle.enter_context(raw_client(prefill)) for _ in range(64)]
        assert served(prefill, "decode engine")
        assert peers[0].at_end(), "the oldest makes room"
        greet(peers[-1], "late")


def test_a_connection_that_never_greets_is_closed() -> None:
    with serving(limits=QUICK) as prefill, raw_client(prefill) as peer:
        assert peer.at_end()
        assert served(prefill, "next")


def test_a_frame_too_large_before_the_greeting_is_not_awaited() -> None:
    with serving() as prefill, raw_client(prefill) as peer:
        peer.socket.sendall((MAX_GREETING_BYTES + 1).to_bytes(4, "big"))
        assert peer.at_end()
        assert served(prefill, "next")


@pytest.mark.parametrize(
    ("after", "error"),
    [
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes; allowed: at most 33554432"),
        (b"\0\0\0\1\xc1", "not a message of the hand-over"),
        (frame(Attested(1)), "not a message of the hand-over"),
        (frame(hello()), "not a message of the hand-over"),
    ],
)
def test_nonsense_after_the_greeting_loses_the_peer(after: bytes, error: str) -> None:
    with serving() as prefill, raw_client(prefill) as peer:
        greet(peer)
        peer.socket.sendall(after)
        [lost] = prefill.take()
        assert isinstance(lost, PeerLost)
        assert error in lost.error
        assert peer.at_end()


def test_a_silent_decode_engine_is_lost() -> None:
    with serving(limits=QUICK) as prefill, raw_client(prefill) as peer:
        greet(peer)
        assert prefill.take() == [PeerLost(1, "decode engine decode-pod: silent for 0.2 s")]


def test_pings_keep_a_connection_that_has_nothing_to_say() -> None:
    limits = replace(QUICK, ping_seconds=0.15, silence_seconds=1.0)  # a busy machine is no silence
    with serving(limits=limits) as prefill, raw_client(prefill) as peer:
        greet(peer)
        for _ in range(8):  # longer than a peer may be silent
            assert peer.read() == Ping()
            peer.send(Ping())
        peer.send(bootstrap(1))
        assert prefill.take() == [FromDecode(1, bootstrap(1))]


def test_a_silent_prefill_engine_loses_its_rooms() -> None:
    with raw_listener() as (listener, engine), connecting(limits=QUICK) as decode:
        decode.port.open(engine, bootstrap(1))
        with accepted(listener) as peer:
            first = peer.read()
            assert isinstance(first, Hello)
            peer.send(make_welcome(PREFILL, first))
            assert peer.read() == bootstrap(1)
            assert peer.read() == Ping()
            [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert lost.error.endswith(": silent for 0.2 s")


def test_an_engine_that_does_not_answer_the_greeting_loses_its_rooms() -> None:
    with raw_listener() as (_, engine), connecting(limits=QUICK) as decode:
        decode.port.open(engine, bootstrap(1))
        [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert lost.error.endswith(": no greeting was accepted in 0.2 s")


def test_a_welcome_of_a_stranger_is_not_believed() -> None:
    with raw_listener() as (listener, engine), connecting() as decode:
        decode.port.open(engine, bootstrap(1))
        with accepted(listener) as peer:
            first = peer.read()
            assert isinstance(first, Hello)
            peer.send(make_welcome(replace(PREFILL, keys=lambda: (b"x" * 32,)), first))
            [lost] = decode.take()
            assert isinstance(lost, RoomLost)
            assert "its answer to the greeting is not signed" in lost.error
            assert peer.at_end()


def test_a_room_closed_before_the_connection_stands_is_never_asked_for() -> None:
    with raw_listener() as (listener, engine), connecting() as decode:
        decode.port.open(engine, bootstrap(1))
        decode.port.open(engine, bootstrap(2))
        with accepted(listener) as peer:
            first = peer.read()
            assert isinstance(first, Hello)
            decode.port.close(1)
            peer.send(make_welcome(PREFILL, first))
            assert peer.read() == bootstrap(2)


def test_a_prefill_engine_speaks_only_of_rooms_opened_with_it() -> None:
    with serving() as prefill, raw_listener() as (listener, other), connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        prefill.take()
        decode.port.open(other, bootstrap(2))
        with accepted(listener) as peer:
            first = peer.read()
            assert isinstance(first, Hello)
            peer.send(make_welcome(PREFILL, first))
            peer.send(Attested(1))
            peer.send(Attested(2))
            assert [event.room for event in decode.take()] == [2]


def test_a_peer_that_reads_nothing_is_cut_off() -> None:
    limits = ConnectionLimits(max_unsent_bytes=1 << 20)
    with serving(limits=limits) as prefill, raw_client(prefill) as peer:
        greet(peer)
        for room in range(64):
            prefill.port.send(1, Finished(room, 1, 1, "h" * (1 << 19), 0))
        [lost] = prefill.take()
        assert isinstance(lost, PeerLost)
        assert "bytes are unread; allowed: at most 1048576" in lost.error


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(limits=QUICK) as prefill:
        yield prefill


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


_fields = msgspec.to_builtins(hello())
_values = st.one_of(
    st.none(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary()
)
_near_hellos = st.dictionaries(st.sampled_from(sorted(_fields)), _values, min_size=1).map(
    lambda changes: _framed(msgspec.msgpack.encode(_fields | changes))
)


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(first=st.one_of(st.binary(max_size=200), st.binary().map(_framed), _near_hellos))
def test_any_first_bytes_end_at_most_their_own_connection(server: Server, first: bytes) -> None:
    with raw_client(server) as peer:
        peer.socket.sendall(first)
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.at_end()
    assert server.port.failure is None


def test_the_server_still_serves_after_all_of_that(server: Server) -> None:
    assert served(server, "last")
