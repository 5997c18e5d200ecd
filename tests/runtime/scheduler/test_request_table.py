"""Phases change in the request table alone, as the table of transitions says; and what `Running`
carries along is what counting would give."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime import scheduler
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.pacing import Pacing, StepView, TargetChunk
from sluice_runtime.scheduler.request import TRANSITIONS, Phase, Request, request_from
from sluice_runtime.scheduler.request_table import (
    RESERVED_TOKENS_CLIP,
    RequestTable,
    Running,
    WaitingQueue,
)
from sluice_runtime.scheduler.settings import StepTarget
from sluice_runtime.wire.messages import Sampling

from tests.examples import examples
from tests.runtime.scheduler.building import request, settings_of

GOALS = {
    "cut": Phase.PREFILLING,
    "prefill": Phase.RUNNING,
    "requeue": Phase.WAITING,
    "end": Phase.ENDED,
}


def apply(table: RequestTable, operation: str, moved: Request) -> None:
    if operation in ("cut", "prefill"):
        if moved.phase is Phase.WAITING:
            table.waiting.remove(moved)
        table.prefill(moved, 4, cut=operation == "cut")
    elif operation == "requeue":
        moved.computed_tokens = 0
        table.requeue(moved, 0.0)
    else:
        table.end(moved)


@given(st.lists(st.sampled_from(sorted(GOALS)), max_size=20), st.booleans())
def test_what_is_not_in_the_table_of_transitions_cannot_happen(
    operations: list[str], preallocated: bool
) -> None:
    table, moved = RequestTable(4), request_from(request("a", 8, 10), 10)
    (table.add_remote if preallocated else table.add)(moved)
    if preallocated:
        table.preallocate(moved)
    for operation in operations:
        before, goal = moved.phase, GOALS[operation]
        if goal in TRANSITIONS[before]:
            apply(table, operation, moved)
            assert moved.phase is goal
        else:
            with pytest.raises(AssertionError, match=f"a: {before} to {goal}"):
                apply(table, operation, moved)
            assert moved.phase is before
        assert ("a" in table) == (moved.phase is not Phase.ENDED)
        assert (moved in table.running) <= (moved.phase is Phase.RUNNING)
        assert len(table.waiting) == (moved.phase is Phase.WAITING)


def test_a_request_that_comes_from_another_engine_waits_where_its_first_arrival_is() -> None:
    """Behind one that was retracted, which waits in front of all."""
    table, seconds = RequestTable(4), {"a": 3.0, "b": 5.0, "moved": 2.0, "c": 6.0, "later": 5.0}
    table.add(retracted := request_from(request("retracted", 8, 10, arrival_seconds=4.0), 10))
    table.waiting.remove(retracted)
    retracted.started_seconds = 4.0
    table.waiting.push_front(retracted)
    for name, arrival in seconds.items():
        table.add(request_from(request(name, 8, 10, arrival_seconds=arrival), 10))
        remote = request(f"remote-{name}", 8, 10, arrival_seconds=arrival)
        table.add_remote(request_from(remote, 10))
    order = ["moved", "a", "b", "later", "c"]
    assert [waiting.request_id for waiting in table.waiting] == ["retracted", *order]
    assert list(table.awaiting_pages) == [f"remote-{name}" for name in order]


def test_no_other_module_changes_a_phase() -> None:
    modules = Path(scheduler.__file__).parent.rglob("*.py")
    writers = {path.stem for path in modules if re.search(r"\.phase = ", path.read_text())}
    assert writers == {"request_table"}


PAGE_SIZE = 4
ANSWERS = st.one_of(
    st.integers(0, 9), st.integers(RESERVED_TOKENS_CLIP - 4, RESERVED_TOKENS_CLIP + 9)
)
STARTS = st.lists(st.tuples(st.integers(1, 9), ANSWERS, st.booleans()), max_size=3)
LEAVES = st.lists(st.integers(0, 20), max_size=2)


def _starts(running: Running, prompt: int, max_tokens: int, *, ignore_eos: bool) -> Request:
    name = f"r{len(running)}-{id(running)}-{prompt}-{max_tokens}"
    while name in {decoding.request_id for decoding in running}:
        name += "'"
    joining = Request(
        name, [1] * prompt, prompt, max_tokens, Sampling(), frozenset(), ignore_eos, 0.0
    )
    joining.computed_tokens = prompt
    joining.page_ids = [0] * pages_for(prompt, PAGE_SIZE)
    running.join(joining)
    return joining


def _decode(running: Running) -> None:
    for needing in running.rows_needing_page():
        needing.page_ids.append(0)
    running.advance(running.ready())


@examples(80)
@given(st.lists(st.tuples(STARTS, LEAVES), min_size=1, max_size=30))
def test_sums_and_openings_are_those_of_counting(
    steps: list[tuple[list[tuple[int, int, bool]], list[int]]],
) -> None:
    running = Running(PAGE_SIZE)
    for starts, leaves in steps:
        _decode(running)
        for prompt, max_tokens, ignore_eos in starts:
            _starts(running, prompt, max_tokens, ignore_eos=ignore_eos)
        for pick in leaves:
            if running:
                leaving = list(running)[pick % len(running)]
                leaving.computed_tokens *= pick % 2  # some have given back what they held
                running.leave(leaving)
                assert leaving not in running
        running.check_integrity()


@examples(100)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5), st.data())
def test_many_steps_at_once_are_as_many_in_turn(
    starts: list[tuple[int, bool]], data: st.DataObject
) -> None:
    at_once, in_turn = Running(PAGE_SIZE), Running(PAGE_SIZE)
    near_the_clip = st.integers(RESERVED_TOKENS_CLIP - 5, RESERVED_TOKENS_CLIP + 30)
    answers = [data.draw(near_the_clip) for _ in starts]
    for running in (at_once, in_turn):
        for (prompt, ignore_eos), answer in zip(starts, answers, strict=True):
            _starts(running, prompt, answer, ignore_eos=ignore_eos)
    steps = data.draw(st.integers(1, 40))
    at_once.advance(at_once.ready(), steps)
    for _ in range(steps):
        in_turn.advance(in_turn.ready())
    for running in (at_once, in_turn):
        running.check_integrity()
    assert [r.computed_tokens for r in at_once] == [r.computed_tokens for r in in_turn]


def test_nothing_is_left_of_those_that_left() -> None:
    running = Running(PAGE_SIZE)
    for answer in (0, 1, 7, RESERVED_TOKENS_CLIP + 1):
        _starts(running, 3, answer, ignore_eos=False)
    _decode(running)
    for leaving in list(running):
        running.leave(leaving)
        running.leave(leaving)
    assert not running
    assert (running.context_tokens, running.reserved_tokens(1.0)) == (0, 0)
    assert (running._ending, running._above_reserve_clip, running._last_token_in_flight) == (
        {},
        {},
        set(),
    )
    assert not any(running._needs_page_at_tick)


def test_a_steps_budget_counts_those_that_are_ready() -> None:
    target = StepTarget(seconds=1.0, share=0.99, start_tokens=64)
    pacing = Pacing(settings_of(page_size=PAGE_SIZE, chunk_size=256, target=target))
    running, seen = Running(PAGE_SIZE), list[StepView]()
    for answer in (1, 1, 5, 6):
        _starts(running, 8, answer, ignore_eos=True)
    _decode(running)
    learning = pacing.budget(running, None)
    assert learning.tokens == 64 + 2
    with patch.object(TargetChunk, "budget", lambda _, view: seen.append(view)):
        pacing.budget(running, None)
    assert seen == [StepView(decode_rows=2, decode_context_tokens=2 * (9 + 1))]


def test_whoever_has_its_last_token_in_flight_is_not_ready() -> None:
    running = Running(PAGE_SIZE)
    last = _starts(running, 4, 2, ignore_eos=True)
    more = _starts(running, 4, 3, ignore_eos=True)
    assert running.rows_needing_page() == running.ready() == [last, more]
    _decode(running)
    assert running.ready() == [more]
    assert list(running) == [last, more]
    assert (running.context_tokens, running.reserved_tokens(0.1)) == (5, 1)


def test_retracted_requests_wait_in_front() -> None:
    queue = WaitingQueue()
    first, second, back = (request_from(request(n, 5, 1), 1) for n in ("a", "b", "c"))
    queue.add(first)
    queue.add(second)
    queue.push_front(back)
    assert [waiting.request_id for waiting in queue] == ["c", "a", "b"]
    queue.remove(first)
    assert (len(queue), queue.tokens) == (2, 10)


def test_of_one_that_was_sent_back_only_what_is_computed_anew_has_landed() -> None:
    table, requeued = RequestTable(4), request_from(request("a", 8, 10), 10)
    table.add(requeued)
    table.waiting.remove(requeued)
    table.prefill(requeued, 8, cut=False)
    requeued.token_ids += [1, 2, 3]
    assert requeued.landed_tokens == 10
    requeued.computed_tokens = 0  # as where it gave back what it held
    table.requeue(requeued, 0.0)
    requeued.prefilled_tokens = 4
    assert requeued.landed_tokens == 4
