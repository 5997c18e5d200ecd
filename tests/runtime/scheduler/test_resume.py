"""Requests whose prompt another process computes: room first, then decoding without a forward."""

from __future__ import annotations

import msgspec
import pytest
from sluice_runtime.scheduler import preallocation
from sluice_runtime.scheduler.batch import ForwardMode, Preallocated
from sluice_runtime.scheduler.request import TRANSITIONS, Phase
from sluice_runtime.wire.messages import Generate

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to, next_token


def prompt_of(number: int, length: int) -> list[int]:
    return [number % 2] * (length // 2) + list(range(length - length // 2))


def preallocate(bench: Bench, asked: Generate) -> Preallocated | None:
    """The pages of one request, if there are any now."""
    bench.scheduler.add_remote(asked)
    rooms = bench.scheduler.next_preallocations(0.0)
    return next((room for room in rooms if room.request_id == asked.request_id), None)


def arrive(bench: Bench, asked: Generate, room: Preallocated) -> None:
    """The prompt's pages and first token come from elsewhere."""
    rest = asked.prompt_ids[room.cached_tokens :]
    bench.runner.receive(room.page_ids, room.cached_tokens, rest)
    first = (next_token(asked.prompt_ids), None, None)
    bench.scheduler.resume(asked.request_id, first, room.cached_tokens, 0.0)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("length", [1, 7, 8, 9])
@pytest.mark.parametrize("drafts", [0, 4])
def test_a_resumed_request_only_decodes(overlap: bool, length: int, drafts: int) -> None:
    bench = Bench(settings_of(draft_tokens=drafts), overlap=overlap)
    asked = request("a", prompt_of(0, length), 6)
    room = preallocate(bench, asked)
    assert room is not None
    bench.scheduler.check_integrity()
    assert bench.launch() is None, "nothing is computed before the prompt has come"
    arrive(bench, asked, room)
    batches = bench.run()
    verified = {ForwardMode.TARGET_VERIFY} if drafts else set()
    assert {b.mode for b in batches} - verified <= {ForwardMode.DECODE, ForwardMode.IDLE}
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 6)
    assert [delta.finish_reason for delta in bench.terminals["a"]] == ["length"]
    assert bench.scheduler.status().pages_free == bench.scheduler.status().pages_total


def test_a_request_that_ends_with_its_first_token_is_never_in_a_batch_that_computes() -> None:
    bench = Bench(settings_of())
    asked = request("a", 5, 1)
    room = preallocate(bench, asked)
    assert room is not None
    arrive(bench, asked, room)
    assert [batch.mode for batch in bench.run()] == [ForwardMode.IDLE]
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 1)


def test_what_has_no_room_now_has_it_later_in_the_order_of_arrival() -> None:
    bench = Bench(settings_of(pool_tokens=32))
    assert preallocate(bench, request("a", 20, 3)) is not None
    assert preallocate(bench, request("b", 20, 3)) is None
    assert preallocate(bench, request("c", 1, 1)) is None, "it would overtake"
    assert bench.scheduler.status().awaiting_pages == 2
    bench.scheduler.abort("a")
    assert [room.request_id for room in bench.scheduler.next_preallocations(0.0)] == ["b", "c"]


def test_tokens_are_kept_free_for_those_that_are_active_as_far_as_they_may_want_them() -> None:
    bench = Bench(settings_of(pool_tokens=1024))
    assert preallocate(bench, request("a", 100, 5000)) is not None
    assert preallocate(bench, request("b", 10, 2000)) is None, "512 for each of both"
    bench.scheduler.abort("b")
    assert preallocate(bench, request("c", 100, 200)) is not None, "512 and 200"


def test_a_prompt_whose_adapter_finds_no_room_waits_and_others_go_on() -> None:
    bench = Bench(settings_of(max_adapters=1))
    bench.scheduler.take_adapters({"x": "/x", "y": "/y"})
    assert preallocate(bench, request("a", 5, 3, adapter="x")) is not None
    assert preallocate(bench, request("b", 5, 3, adapter="y")) is None
    assert preallocate(bench, request("c", 5, 3, adapter="x")) is not None
    assert preallocate(bench, request("d", 5, 3)) is not None
    bench.scheduler.abort("a")
    bench.scheduler.abort("c")
    assert [room.request_id for room in bench.scheduler.next_preallocations(0.0)] == ["b"]


def test_a_prompt_waits_for_the_page_of_its_next_token_though_it_has_the_engine_alone() -> None:
    bench = Bench(settings_of(pool_tokens=32))
    assert preallocate(bench, request("gone", 10, 3)) is not None
    bench.scheduler.begin_transfer("gone", "read")
    bench.scheduler.abort("gone")
    free = bench.scheduler.status().pages_free * 4
    assert preallocate(bench, request("a", free, 3)) is None
    bench.scheduler.end_transfer("read")
    assert [room.request_id for room in bench.scheduler.next_preallocations(0.0)] == ["a"]


def test_the_bound_of_the_queue_holds_for_it_too() -> None:
    bench = Bench(settings_of(pool_tokens=64, max_running_requests=1, max_queued_requests=2))
    for name in "abcd":
        bench.scheduler.add_remote(request(name, 8, 2))
    bench.run()
    assert bench.terminals["d"][0].refusal == "overloaded"
    assert list(bench.terminals) == ["d"]


def test_what_never_has_room_is_refused() -> None:
    bench = Bench(settings_of(pool_tokens=32))
    assert preallocate(bench, request("a", 40, 3)) is None
    bench.run()
    assert bench.terminals["a"][0].finish_reason == "error"
    assert "40 tokens" in (bench.terminals["a"][0].error or "")


@pytest.mark.parametrize("first", ["runs", "is-preallocated"])
def test_an_id_in_use_gets_no_pages_and_the_first_request_keeps_its_own(first: str) -> None:
    bench = Bench(settings_of())
    asked = request("a", 9, 3)
    room = None
    if first == "runs":
        bench.add(asked)
        bench.step()
    else:
        room = preallocate(bench, asked)
    assert preallocate(bench, request("a", 5, 3)) is None
    bench.scheduler.check_integrity()
    if room:
        arrive(bench, asked, room)
    bench.run()
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 3)
    assert [delta.finish_reason for delta in bench.terminals["a"]] == ["error", "length"]


def test_no_phase_follows_the_end_and_all_lead_to_it() -> None:
    assert TRANSITIONS.keys() == set(Phase)
    assert not TRANSITIONS[Phase.ENDED]
    assert all(Phase.ENDED in TRANSITIONS[phase] for phase in Phase if phase is not Phase.ENDED)


def test_what_was_resumed_can_be_preempted_as_others_can() -> None:
    bench = Bench(settings_of(64, policy="priority", max_running_requests=1))
    asked = request("a", 8, 9, priority=0)
    room = preallocate(bench, asked)
    assert room is not None
    bench.scheduler.begin_transfer("a", 1)
    bench.scheduler.end_transfer(1)
    arrive(bench, asked, room)
    bench.step()
    bench.add(request("urgent", 8, 3, priority=100))
    bench.run()
    assert list(bench.terminals) == ["urgent", "a"]
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 9)


def test_whose_pages_are_read_is_not_preempted() -> None:
    """Its pages would not come free by that."""
    bench = Bench(settings_of(64, policy="priority", max_running_requests=1))
    bench.scheduler.add(request("a", 40, 1, priority=0), transfer=1)
    bench.step()
    bench.add(request("urgent", 8, 3, priority=100))
    bench.run()
    assert list(bench.terminals) == ["a", "urgent"]
    bench.scheduler.end_transfer(1)


def test_tenants_share_the_places_of_requests_that_are_computed_elsewhere() -> None:
    bench = Bench(settings_of(max_running_requests=4, max_queued_requests=64))
    for number in range(12):
        bench.scheduler.add_remote(of_tenant("bob", f"bob{number}"))
    bench.scheduler.add_remote(of_tenant("alice", "alice"))
    first = [room.request_id for room in bench.scheduler.next_preallocations(0.0)]
    assert first == ["bob0", "alice", "bob1", "bob2"]


def test_prompts_that_are_computed_elsewhere_get_no_more_pages_than_a_step_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But one prompt gets all its pages."""
    bench = Bench(settings_of(max_running_requests=8))
    size = bench.settings.page_size
    monkeypatch.setattr(preallocation, "JOINED_PAGES", 3)
    for name, pages in (("a", 2), ("b", 2), ("c", 5), ("d", 1)):
        bench.scheduler.add_remote(request(name, pages * size, 4))
    steps = [bench.scheduler.next_preallocations(0.0) for _ in range(4)]
    assert [[room.request_id for room in step] for step in steps] == [["a"], ["b"], ["c"], ["d"]]


def of_tenant(tenant: str, request_id: str) -> Generate:
    return msgspec.structs.replace(request(request_id, [1, 2, 3], 4), tenant=tenant)
