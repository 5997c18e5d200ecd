"""Requests whose prompt another process computes: room first, then decoding without a forward."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_runtime.messages import Generate
from sluice_runtime.scheduler.batch import ForwardMode
from sluice_runtime.scheduler.request import TRANSITIONS, Phase
from sluice_runtime.scheduler.step_outcome import Preallocated

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to, next_token


def prompt_of(number: int, length: int) -> list[int]:
    return [number % 2] * (length // 2) + list(range(length - length // 2))


def arrive(bench: Bench, asked: Generate, room: Preallocated) -> None:
    """The prompt's pages and first token come from elsewhere."""
    rest = asked.prompt_ids[room.cached_tokens :]
    bench.runner.receive(room.page_ids, room.cached_tokens, rest)
    bench.scheduler.resume(asked.request_id, (next_token(asked.prompt_ids), None, None), 0.0)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_a_resumed_request_only_decodes(overlap: bool, length: int) -> None:
    bench = Bench(settings_of(), overlap=overlap)
    asked = request("a", prompt_of(0, length), 6)
    room = bench.scheduler.preallocate(asked)
    assert room is not None
    bench.scheduler.check_integrity()
    assert bench.launch() is None, "nothing is computed before the prompt has come"
    arrive(bench, asked, room)
    batches = bench.run()
    assert {batch.mode for batch in batches} <= {ForwardMode.DECODE, ForwardMode.IDLE}
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 6)
    assert [delta.finish_reason for delta in bench.terminals["a"]] == ["length"]
    assert bench.scheduler.status().pages_free == bench.scheduler.status().pages_total


def test_a_request_that_ends_with_its_first_token_is_never_in_a_batch_that_computes() -> None:
    bench = Bench(settings_of())
    asked = request("a", 5, 1)
    room = bench.scheduler.preallocate(asked)
    assert room is not None
    arrive(bench, asked, room)
    assert [batch.mode for batch in bench.run()] == [ForwardMode.IDLE]
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 1)


def test_what_has_no_room_now_has_it_later() -> None:
    bench = Bench(settings_of(pool_tokens=32))
    assert bench.scheduler.preallocate(request("a", 20, 3)) is not None
    assert bench.scheduler.preallocate(request("b", 20, 3)) is None
    bench.scheduler.abort("a")
    bench.run()
    assert bench.scheduler.preallocate(request("b", 20, 3)) is not None


def test_what_never_has_room_is_refused() -> None:
    bench = Bench(settings_of(pool_tokens=32))
    assert bench.scheduler.preallocate(request("a", 40, 3)) is None
    bench.run()
    assert bench.terminals["a"][0].finish_reason == "error"


@pytest.mark.parametrize("first", ["runs", "is-preallocated"])
def test_an_id_in_use_gets_no_pages_and_the_first_request_keeps_its_own(first: str) -> None:
    bench = Bench(settings_of())
    asked = request("a", 9, 3)
    room = None
    if first == "runs":
        bench.add(asked)
        bench.step()
    else:
        room = bench.scheduler.preallocate(asked)
    assert bench.scheduler.preallocate(request("a", 5, 3)) is None
    bench.scheduler.check_integrity()
    if room:
        arrive(bench, asked, room)
    bench.run()
    assert bench.answers["a"] == answer_to(asked.prompt_ids, 3)
    assert [delta.finish_reason for delta in bench.terminals["a"]] == ["error", "length"]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "preallocate", "arrive", "step", "step", "abort"]),
        st.integers(0, 1000),
    ),
    max_size=60,
)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@given(operations=OPERATIONS)
@settings(max_examples=60, deadline=None)
def test_resumed_and_other_requests_answer_as_if_alone(
    overlap: bool, prefix_cache: bool, operations: list[tuple[str, int]]
) -> None:
    """With retractions, which compute a resumed request's prompt here."""
    bench = Bench(
        settings_of(96, prefix_cache=prefix_cache, conservativeness=0.05), overlap=overlap
    )
    coming: dict[str, tuple[Generate, Preallocated]] = {}
    asked: dict[str, Generate] = {}
    aborted = set()
    for number, (operation, choice) in enumerate(operations):
        name = f"r{number}"
        message = request(name, prompt_of(choice, choice % 30 + 1), choice % 9 + 1)
        if operation == "add":
            asked[name] = message
            bench.add(message)
        elif operation == "preallocate":
            if room := bench.scheduler.preallocate(message):
                asked[name], coming[name] = message, (message, room)
        elif operation == "arrive" and coming:
            arrive(bench, *coming.pop(random.Random(choice).choice(sorted(coming))))
        elif operation == "step":
            bench.step()
        elif operation == "abort" and asked:
            name = sorted(asked)[choice % len(asked)]
            bench.scheduler.abort(name)
            coming.pop(name, None)
            aborted.add(name)
        bench.scheduler.check_integrity()
    for message, room in coming.values():
        arrive(bench, message, room)
    bench.run()
    for name, message in asked.items():
        assert len(bench.terminals[name]) == 1
        if name not in aborted:
            assert bench.answers[name] == answer_to(message.prompt_ids, message.max_tokens)
    status = bench.scheduler.status()
    assert status.pages_free + status.pages_evictable == status.pages_total


def test_no_phase_follows_the_end_and_all_lead_to_it() -> None:
    assert TRANSITIONS.keys() == set(Phase)
    assert not TRANSITIONS[Phase.ENDED]
    assert all(Phase.ENDED in TRANSITIONS[phase] for phase in Phase if phase is not Phase.ENDED)
