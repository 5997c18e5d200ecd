"""A decode and a prefill engine over real sockets: rooms, their order, and every end of them."""

from __future__ import annotations

import gc
import os
import threading

import msgspec
import pytest
from sluice_runtime.handover.decode_client import DecodeClient
from sluice_runtime.handover.loop_thread import HandoverThreadError
from sluice_runtime.handover.messages import (
    Attested,
    Cancel,
    Chunk,
    Failed,
    Finished,
    Received,
)
from sluice_runtime.handover.ports import FromDecode, FromPrefill, PeerLost, PrefillEvent, RoomLost
from sluice_runtime.handover.prefill_link import ClientSettings, PrefillLink
from sluice_runtime.handover.prefill_server import Answer, BootstrapSettings, PrefillServer

from tests.patience import PATIENCE_SECONDS
from tests.runtime.handover.conversing import (
    DECODE,
    MEMORY,
    NOW,
    PREFILL,
    Mailbox,
    Server,
    bootstrap,
    connecting,
    raw_listener,
    serving,
)


def chunk(room: int, number: int = 0) -> Chunk:
    return Chunk(room, number * 16, number * 16 + 16, (number,), 7)


def test_a_whole_conversation_arrives_in_order_on_both_sides() -> None:
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(9))
        [opened] = prefill.take()
        assert isinstance(opened, FromDecode)
        assert opened.message == bootstrap(9)
        said: list[Answer] = [chunk(9, 0), chunk(9, 1), Finished(9, 42, 32, "hash", 0)]
        for message in said:
            prefill.port.send(opened.peer, message)
        assert decode.take(3) == [FromPrefill(message, MEMORY) for message in said]
        decode.port.send(Received(9))
        assert prefill.take() == [FromDecode(opened.peer, Received(9))]
        prefill.port.send(opened.peer, Attested(9))
        assert decode.take() == [FromPrefill(Attested(9), MEMORY)]


def test_rooms_share_one_connection_and_each_keeps_its_order() -> None:
    rooms = range(1, 201)
    with serving() as prefill, connecting() as decode:
        for room in rooms:
            decode.port.open(prefill.engine, bootstrap(room))
        opened = prefill.take(len(rooms))
        assert {event.peer for event in opened} == {1}
        for number in range(5):
            for room in rooms:
                prefill.port.send(1, chunk(room, number))
        events = decode.take(5 * len(rooms))
        for room in rooms:
            of_room = [e.message for e in events if isinstance(e, FromPrefill) and e.room == room]
            assert of_room == [chunk(room, number) for number in range(5)]


def test_a_closed_room_has_no_more_events() -> None:
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        decode.port.open(prefill.engine, bootstrap(2))
        prefill.take(2)
        prefill.port.send(1, chunk(1))
        assert decode.mail.woken.wait(PATIENCE_SECONDS)
        decode.port.send(Cancel(1, "not wanted"))
        decode.port.close(1)
        prefill.port.send(1, chunk(1))
        prefill.port.send(1, chunk(2))
        assert decode.take() == [FromPrefill(chunk(2), MEMORY)]
        assert prefill.take() == [FromDecode(1, Cancel(1, "not wanted"))]


def test_a_room_ends_with_what_ends_it() -> None:
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        decode.port.open(prefill.engine, bootstrap(2))
        prefill.take(2)
        for message in (Failed(1, "full", "overloaded"), chunk(1), chunk(2)):
            prefill.port.send(1, message)
        events = decode.take(2)
        assert [e.message for e in events if isinstance(e, FromPrefill)] == [
            Failed(1, "full", "overloaded"),
            chunk(2),
        ]


def test_a_prefill_engine_that_ends_loses_all_rooms_and_nothing_is_kept_of_it() -> None:
    with connecting() as decode:
        with serving() as prefill:
            engine = prefill.engine
            for room in (1, 2, 3):
                decode.port.open(engine, bootstrap(room))
            prefill.take(3)
        lost = decode.take(3)
        where = "prefill engine prefill-pod: "
        assert {event.room for event in lost} == {1, 2, 3}
        assert all(isinstance(e, RoomLost) and e.error.startswith(where) for e in lost)
        decode.port.open(engine, bootstrap(4))
        [refused] = decode.take()
        assert isinstance(refused, RoomLost)
        assert refused.error == f"{where}cannot connect: Connection refused"
        assert refused.unasked
        assert not any(isinstance(e, RoomLost) and e.unasked for e in lost)


def test_a_decode_engine_that_ends_is_lost_with_all_its_rooms() -> None:
    with serving() as prefill:
        with connecting() as decode:
            decode.port.open(prefill.engine, bootstrap(1))
            prefill.take()
        assert prefill.take() == [PeerLost(1, "decode engine decode-pod: closed by the peer")]
        prefill.port.send(1, chunk(1))
        with connecting(nonce=lambda: "of another") as other:
            other.port.open(prefill.engine, bootstrap(1))
            [opened] = prefill.take()
            assert isinstance(opened, FromDecode)
            assert opened.peer == 2


def test_a_connection_without_rooms_is_closed_and_opened_again() -> None:
    with serving() as prefill, connecting(idle_seconds=0.02) as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        prefill.take()
        prefill.port.send(1, Attested(1))
        decode.take()
        assert isinstance(prefill.take()[0], PeerLost)
        decode.port.open(prefill.engine, bootstrap(2))
        [opened] = prefill.take()
        assert opened.peer == 2


def test_nothing_is_kept_of_engines_that_are_gone() -> None:
    with raw_listener() as (_, engine):
        pass
    with connecting() as decode:
        for room in range(5):
            decode.port.open(msgspec.structs.replace(engine, epoch=f"{room}"), bootstrap(room))
            decode.take()
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, PrefillLink)]
        assert len(kept) <= 1  # the last one is just ending


def test_a_prefill_engine_that_is_not_there_is_named() -> None:
    with raw_listener() as (_, engine):
        pass
    with connecting() as decode:
        decode.port.open(engine, bootstrap(5))
        [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert lost.room == 5
        assert lost.error.startswith("prefill engine prefill-pod: ")
        assert str(engine.port) not in lost.error


def test_a_request_too_large_for_a_frame_ends_only_its_own_room() -> None:
    with serving() as prefill, connecting(max_sent_bytes=1000) as decode:
        decode.port.open(prefill.engine, bootstrap(1, [7] * 2000))
        [lost] = decode.take()
        assert isinstance(lost, RoomLost)
        assert lost.error.endswith("bytes; allowed: at most 1000")
        assert not lost.unasked
        decode.port.open(prefill.engine, bootstrap(2))
        assert prefill.take()[0].peer == 1


def test_an_answer_too_large_for_a_frame_ends_its_room_on_both_sides() -> None:
    with serving(max_sent_bytes=1000) as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        prefill.take()
        prefill.port.send(1, Finished(1, 42, 32, "h" * 2000, 0))
        [failed] = decode.take()
        assert isinstance(failed, FromPrefill)
        assert isinstance(failed.message, Failed)
        assert "Finished has" in failed.message.error
        assert prefill.take() == [FromDecode(1, Cancel(1, failed.message.error))]


def test_the_engine_notices_when_a_thread_died() -> None:
    def broken() -> str:
        raise LookupError("no more nonces")

    with serving() as prefill, connecting(nonce=broken) as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        with pytest.raises(HandoverThreadError, match="handover-client: LookupError: no more"):
            decode.take()
        assert decode.port.failure == "LookupError: no more nonces"


def test_an_error_in_a_connections_task_is_noticed_too() -> None:
    woken, errors = threading.Event(), [LookupError("once")]

    def wake() -> None:
        woken.set()
        if errors:
            raise errors.pop()

    with raw_listener() as (_, engine):
        pass
    client = DecodeClient(DECODE, wake, ClientSettings(), float, str)
    client.open(engine, bootstrap(1))
    while client.failure is None:
        assert woken.wait(PATIENCE_SECONDS)
        woken.clear()
    client.shut_down()
    with pytest.raises(HandoverThreadError, match="LookupError: once"):
        client.events()


def test_an_error_in_handling_a_connection_ends_that_one_only() -> None:
    broken = [True]

    def unix_seconds() -> float:
        return 1 / 0 if broken else NOW

    mail: Mailbox[PrefillEvent] = Mailbox()
    settings = BootstrapSettings("127.0.0.1", 0)
    port = PrefillServer(PREFILL, mail.woken.set, settings, unix_seconds)
    prefill = Server(port, mail)
    with connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        assert isinstance(decode.take()[0], RoomLost)
        broken.clear()
        decode.port.open(prefill.engine, bootstrap(2))
        assert prefill.take() == [FromDecode(1, bootstrap(2))]
    port.close()


def test_the_engine_notices_when_the_servers_thread_died_and_peers_are_told() -> None:
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        prefill.take()
        prefill.port.send(1, object())  # type: ignore[arg-type]
        with pytest.raises(HandoverThreadError, match="handover-server: TypeError"):
            prefill.take()
        assert isinstance(decode.take()[0], RoomLost)


def test_threads_and_descriptors_are_gone_after_the_end() -> None:
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        prefill.take()
        assert len(os.listdir("/proc/self/fd")) > before
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [t.name for t in threading.enumerate() if t.name.startswith("handover")]


def test_calls_after_the_end_are_dropped() -> None:
    with serving() as prefill, connecting() as decode:
        pass
    prefill.port.send(1, chunk(1))
    decode.port.open(prefill.engine, bootstrap(1))
    assert decode.port.events() == []
    prefill.port.close()


def test_a_port_that_is_taken_is_refused_at_the_start() -> None:
    with raw_listener() as (_, engine):
        settings = BootstrapSettings("127.0.0.1", engine.port)
        with pytest.raises(OSError, match="in use"):
            PrefillServer(PREFILL, lambda: None, settings, float)
