"""Pages on their way: when they are freed, what is attested of them, and what is never decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sluice_runtime.errors import EngineUnfitError
from sluice_runtime.handover.messages import (
    Attested,
    Bootstrap,
    Cancel,
    Chunk,
    Finished,
    Received,
)
from sluice_runtime.handover.ports import PagesRead
from sluice_runtime.handover.rooms import HandoverLimits
from sluice_runtime.wire.messages import Generate

from tests.runtime.handover.pair import Pair, ask
from tests.runtime.scheduler.fake_runner import answer_to


def test_pages_are_not_freed_while_a_read_is_under_way_and_are_after_it() -> None:
    pair = Pair()
    pair.pages.held = True
    pair.ask(ask("a", 12, 3))
    pair.turns(4)
    pair.abort("a")
    pair.turns(4)
    assert pair.end("a").finish_reason == "abort"
    assert pair.decode.scheduler.status().pages_free == 64 - 3
    pair.prefill.check_empty()
    pair.pages.held = False
    pair.turns(2)
    pair.check_empty()


def test_pages_that_may_still_be_written_are_never_given_again() -> None:
    pair = Pair()
    pair.pages.result = lambda read: PagesRead(read.number, "timed out", may_still_land=True)
    pair.ask(ask("a", 12, 3))
    pair.turns(10)
    assert pair.end("a").refusal == "prefill_failed"
    assert pair.decode_role._reads.quarantined_pages == 3
    status = pair.decode.scheduler.status()
    assert (status.pages_total, status.pages_free) == (64 - 3, 64 - 3)
    pair.check_empty()


def short_of_three_pages() -> Pair:
    """61 of 64 pages are left; nothing runs."""
    pair = Pair()
    pair.pages.result = lambda read: PagesRead(read.number, "timed out", may_still_land=True)
    pair.ask(ask("lost", 12, 3))
    pair.turns(10)
    pair.pages.result = lambda read: PagesRead(read.number)
    return pair


def test_a_pool_that_lost_pages_ends_every_request_and_serves_on() -> None:
    pair = short_of_three_pages()
    pair.ask(ask("all", 40, 216), ask("beside", 40, 150), ask("never", 244, 2))
    pair.turns(600)
    assert len(pair.decode.link.answer("all")) == 244 - 40
    assert pair.end("all").finish_reason == "length"
    assert len(pair.decode.link.answer("beside")) == 150
    assert pair.end("never").refusal == "unavailable"
    assert pair.end("never").error == (
        "244 tokens, and 1 more, do not fit the 244 tokens that are left of this engine's KV pool "
        "of 256, until it starts anew"
    )
    pair.ask(ask("next", 12, 3))
    pair.turns(10)
    assert pair.decode.link.answer("next") == answer_to(range(12), 3)
    pair.check_empty()


def test_who_waits_for_more_than_is_left_of_the_pool_ends() -> None:
    pair = Pair()
    pair.pages.result = lambda read: PagesRead(read.number, "timed out", may_still_land=True)
    pair.pages.held = True
    pair.ask(ask("lost", 12, 3), ask("waits", 250, 3))
    pair.turns(6)
    pair.pages.held = False
    pair.turns(6)
    assert pair.end("waits").refusal == "unavailable"
    assert not pair.decode_role._awaiting
    pair.check_empty()


def test_an_engine_that_lost_a_tenth_of_its_pool_ends_with_the_numbers() -> None:
    pair = short_of_three_pages()
    pair.pages.result = lambda read: PagesRead(read.number, "timed out", may_still_land=True)
    pair.ask(ask("more", 16, 3))
    with pytest.raises(EngineUnfitError, match=r"7 of 64 KV pages are out of use .*at most 10%"):
        pair.turns(10)


@pytest.mark.parametrize("wrong", ["prompt_hash", "checksum", "page_ids", "end", "token_id"])
def test_what_is_not_as_announced_is_never_decoded(wrong: str) -> None:
    pair = Pair()
    values = {
        "prompt_hash": (Finished, "other"),
        "checksum": (Chunk, 1),
        "page_ids": (Chunk, (1 << 30,) * 4),
        "end": (Finished, 3),
        "token_id": (Finished, -1),
    }
    kind, value = values[wrong]

    def change(message: object) -> list[object]:
        if isinstance(message, kind):
            return [msgspec.structs.replace(message, **{wrong: value})]
        return [message]

    pair.wire.meddle = change
    pair.ask(ask("a", 16, 5))
    pair.turns(15)
    assert pair.end("a").refusal == "prefill_failed"
    assert pair.decode.link.answer("a") == []
    assert any(isinstance(message, Cancel) for message in pair.wire.said)
    pair.check_empty()
    pair.wire.meddle = lambda message: [message]
    pair.ask(ask("b", 16, 5))
    pair.turns(15)
    assert pair.decode.link.answer("b") == answer_to(range(16), 5)


@pytest.mark.parametrize("cached", [0, 16])
def test_what_is_computed_for_another_prompt_is_never_decoded(
    cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefill engine mixes prompts up after it has agreed to one, and is consistent."""
    pair = Pair(prefix_cache=True)
    if cached:
        pair.ask(ask("before", [*range(cached), 7], 1))
        pair.turns(15)
    add = pair.prefill.scheduler.add

    def other(message: Generate, **more: Any) -> None:
        add(msgspec.structs.replace(message, prompt_ids=[*range(19), 5]), **more)

    monkeypatch.setattr(pair.prefill.scheduler, "add", other)
    pair.ask(ask("a", 20, 5))
    pair.turns(15)
    assert pair.end("a").error == (
        "prefill engine prefill-0: another prompt was computed than asked for"
    )
    assert pair.decode.link.answer("a") == []
    pair.check_empty()


def test_a_last_chunk_that_got_lost_is_missed_at_once() -> None:
    pair = Pair()
    pair.wire.meddle = lambda m: [] if isinstance(m, Chunk) and m.end == 40 else [m]
    pair.ask(ask("a", 40, 3))
    pair.turns(10)
    assert pair.end("a").error == (
        "prefill engine prefill-0: 32 of 40 tokens of the prompt were announced"
    )
    pair.check_empty()


def test_a_prompt_that_did_not_arrive_as_it_was_sent_is_not_computed() -> None:
    pair = Pair()

    def change(message: object) -> list[object]:
        if isinstance(message, Bootstrap):
            request = msgspec.structs.replace(message.request, prompt_ids=[7] * 40)
            return [msgspec.structs.replace(message, request=request)]
        return [message]

    pair.wire.meddle = change
    pair.ask(ask("a", 40, 3))
    pair.turns(4)
    assert "not the one whose hash was sent" in (pair.end("a").error or "")
    assert pair.prefill.scheduler.status().steps["EXTEND"] == 0
    pair.check_empty()


def test_pages_that_are_received_before_they_are_computed_end_the_room() -> None:
    pair = Pair()
    pair.pages.held = True
    pair.ask(ask("a", 64, 3))
    pair.turns(2)
    pair.wire.to_prefill(Received(room_of(pair)))
    pair.turns(3)
    assert "received before they were computed" in (pair.end("a").error or "")
    load = pair.prefill_role.load(pair.prefill.scheduler.status())
    assert load.failures == {"Protocol": 1}
    pair.pages.held = False
    pair.turns(5)
    pair.check_empty()


def test_pages_are_attested_while_the_prefill_engine_is_in_a_step() -> None:
    """And its first token is sent before the decode engine's next step."""
    pair = Pair()
    pair.ask(ask("a", 4, 3))
    while Finished not in map(type, pair.wire.said):
        pair.turns()
    while not pair.deltas("a"):
        pair.decode.loop.step()  # no turn of the other
    first = next(step for step in pair.decode.link.steps if step.deltas)
    assert (first.mode, len(first.deltas)) == ("IDLE", 1)
    assert Attested in map(type, pair.wire.said)
    pair.turns(5)
    assert pair.decode.link.answer("a") == answer_to(range(4), 3)
    pair.check_empty()


def test_a_room_that_took_too_long_is_not_attested() -> None:
    """Its pages are read in time, and that is said when they may be another prompt's."""
    pair = Pair(limits=HandoverLimits(hold_seconds=5.0))
    late: list[Received] = []

    def delay(message: object) -> list[object]:
        if isinstance(message, Received):
            late.append(message)
            return []
        return [message]

    pair.wire.meddle = delay
    pair.ask(ask("a", 4, 3))
    pair.turns(5)
    pair.now = 6.0
    pair.prefill.loop.step()
    (received,) = late
    pair.wire.meddle = lambda message: [message]
    pair.wire.to_prefill(received)
    pair.run()
    assert Attested not in map(type, pair.wire.said)
    assert pair.end("a").refusal == "prefill_failed"
    pair.check_empty()


def test_an_attestation_of_pages_that_are_still_read_ends_the_request() -> None:
    """It would decode from what its pages held before."""
    pair = Pair()
    pair.pages.held = True
    pair.ask(ask("a", 4, 3))
    while Finished not in map(type, pair.wire.said):
        pair.turns()
    pair.turns()
    assert pair.pages.waiting
    pair.wire.to_decode(Attested(room_of(pair)))
    pair.turns()
    assert pair.end("a").refusal == "prefill_failed"
    assert "attested before they were received" in (pair.end("a").error or "")
    pair.pages.held = False
    pair.turns(5)
    assert pair.decode.link.answer("a") == []
    pair.check_empty()


def test_an_attestation_that_does_not_come_has_a_deadline_of_its_own() -> None:
    pair = Pair(limits=HandoverLimits(attest_seconds=5.0))
    pair.wire.meddle = lambda m: [] if isinstance(m, Attested) else [m]
    pair.ask(ask("a", 4, 3))
    pair.turns(5)
    pair.now = 4.0
    pair.turns(2)
    assert not pair.deltas("a")
    pair.now = 6.0
    pair.turns(2)
    assert pair.end("a").error == ("prefill engine prefill-0: the attestation did not come in time")
    pair.check_empty()


def test_reads_that_wait_are_not_made_for_a_request_that_has_ended() -> None:
    pair = Pair()
    pair.pages.held = True
    pair.pages.begun = False
    pair.ask(ask("a", 12, 3))
    pair.turns(4)
    (read,) = pair.pages.waiting
    pair.abort("a")
    pair.turns(2)
    pair.pages.held = False
    pair.turns(3)
    assert pair.pages.cancelled == [read]
    assert pair.pages.copied == 0
    pair.check_empty()


@pytest.mark.parametrize("kind", [Cancel, Received])
def test_no_other_decode_engine_ends_a_room(kind: type[Cancel | Received]) -> None:
    """Whatever number it names."""
    pair = Pair()
    pair.pages.held = True
    pair.ask(ask("a", 40, 3))
    while Finished not in map(type, pair.wire.said):
        pair.turns()
    pair.wire.from_another(kind(room_of(pair)))
    pair.turns(2)
    status = pair.prefill.scheduler.status()
    assert pair.prefill_role.queues(status).inflight == 1
    assert pair.prefill_role.load(status).failures == {}
    pair.pages.held = False
    pair.turns(10)
    assert pair.decode.link.answer("a") == answer_to(range(40), 3)
    pair.check_empty()


def room_of(pair: Pair) -> int:
    """The number of the room that was asked for last."""
    bootstraps = [message for message in pair.wire.said if isinstance(message, Bootstrap)]
    return bootstraps[-1].room
