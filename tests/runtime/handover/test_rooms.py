"""Who may be told that a room's pages were held: its own peer, once, until they are let go."""

from __future__ import annotations

from sluice_runtime.handover.messages import Attested, Received
from sluice_runtime.handover.ports import FromDecode, FromPrefill
from sluice_runtime.handover.rooms import HeldRooms

from tests.runtime.handover.conversing import MEMORY, bootstrap, connecting, serving


def test_a_held_room_is_attested_once_and_to_its_peer_only() -> None:
    rooms = HeldRooms()
    rooms.hold(7, peer=1)
    assert not rooms.attest(7, peer=2)
    assert rooms.attest(7, peer=1)
    assert not rooms.attest(7, peer=1)


def test_a_released_room_is_not_attested() -> None:
    rooms = HeldRooms()
    rooms.hold(7, peer=1)
    rooms.release_hold(7)
    rooms.release_hold(8)
    assert not rooms.attest(7, peer=1)


def test_what_is_held_is_attested_without_the_loop_and_the_loop_is_told() -> None:
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        [opened] = prefill.take()
        assert isinstance(opened, FromDecode)
        prefill.port.hold(1, opened.peer)
        decode.port.send(Received(1))
        assert decode.take() == [FromPrefill(Attested(1), MEMORY)]
        assert prefill.take() == [FromDecode(opened.peer, Received(1))]


def test_a_released_room_is_for_the_loop_to_answer() -> None:
    with serving() as prefill, connecting() as decode:
        decode.port.open(prefill.engine, bootstrap(1))
        [opened] = prefill.take()
        assert isinstance(opened, FromDecode)
        prefill.port.hold(1, opened.peer)
        prefill.port.release_hold(1)
        decode.port.send(Received(1))
        assert prefill.take() == [FromDecode(opened.peer, Received(1))]
        prefill.port.send(opened.peer, Attested(1))  # in order: it is the first to arrive
        assert decode.take() == [FromPrefill(Attested(1), MEMORY)]
        assert decode.port.events() == []
