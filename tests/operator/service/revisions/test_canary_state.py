"""The state of a canary after a person's decision, and at its next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_operator.service.revisions.canary_state import CanaryState, canary_state

from tests.examples import examples

LEARNT = {"seen": {"r1": [1, 2]}, "began": "2026-01-02T03:04:05Z", "pods": {}}


def test_a_decision_begins_a_step_and_counts_of_routers_go_on() -> None:
    state = CanaryState(1, "worse", 3, "errors", 2, LEARNT, percent=25)
    assert state.after(CanaryState(decision=3)) is state, "carried out already"
    tried = state.after(CanaryState(decision=4, seen=state.place))
    assert tried == CanaryState(decision=4, learnt={"seen": {"r1": [1, 2]}})
    held = replace(state, verdict="held").after(CanaryState(2, decision=4, seen="1 held"))
    assert (held.step, held.reached, held.percent) == (2, 2, 25)


@pytest.mark.parametrize("before", [CanaryState(1), CanaryState(), CanaryState(0, "worse")])
def test_a_decision_about_another_state_has_no_effect_except_for_an_end(
    before: CanaryState,
) -> None:
    state = CanaryState(1, "worse", 3, "errors", 2, LEARNT)
    promoted = CanaryState(1, "promoted", decision=4, seen=before.place)
    assert state.after(promoted) == replace(state, decision=4)
    aborted = replace(promoted, verdict="aborted")
    assert state.after(aborted).verdict == "aborted"


def test_the_last_step_is_followed_by_all_requests() -> None:
    state = CanaryState(0, "held", 3, "errors", 1, LEARNT)
    assert state.next_step(2) == CanaryState(1, None, 3, reached=1, learnt={"seen": {"r1": [1, 2]}})
    assert state.next_step(1).verdict == "promoted"


@pytest.mark.parametrize(
    ("step", "reached", "percent", "steps", "every", "now"),
    [
        (1, 2, 25, [5, 25], [5, 25], (1, 2, 25)),
        (1, 2, 25, [1, 2, 5, 25], [1, 2, 5, 25], (3, 4, 25)),
        (1, 2, 25, [10, 50], [10, 25, 50], (1, 2, 25)),
        (1, 2, 25, [1, 2], [1, 2], (1, 2, 2)),
        (0, 1, 5, [25], [5, 25], (1, 1, 5)),
        (1, 1, 5, [10, 25], [5, 10, 25], (1, 1, 5)),
        (2, 2, 25, [50], [25, 50], (1, 1, 25)),
        (2, 2, 25, [5, 25], [5, 25], (1, 2, 25)),
        (0, 0, 0, [50], [50], (0, 0, 0)),
    ],
)
def test_where_steps_are_edited_the_share_that_was_reached_stays(
    step: int,
    reached: int,
    percent: int,
    steps: list[int],
    every: list[int],
    now: tuple[int, int, int],
) -> None:
    before = CanaryState(step, reached=reached, percent=percent)
    after = before.among(steps)
    assert before.steps_among(steps) == every
    assert (after.step, after.reached, after.percent) == now
    assert after.noted(every) == after


lists_of_steps = st.sets(st.integers(1, 50), min_size=1, max_size=8).map(sorted)


@given(before=lists_of_steps, after=lists_of_steps, reached=st.integers(1, 8), ahead=st.booleans())
@examples(200)
def test_an_edit_of_steps_takes_no_share_away_unless_all_are_smaller(
    before: list[int], after: list[int], reached: int, ahead: bool
) -> None:
    reached = min(reached, len(before))
    step = min(reached - 1 + ahead, len(before) - 1)
    state = CanaryState(step, reached=reached).noted(before)
    assert state.among(before) == state, "nothing is edited"
    edited = state.among(after)
    every = state.steps_among(after)
    assert every[edited.reached - 1] == edited.percent == min(state.percent, max(after))
    assert edited.among(after) == edited
    assert edited.reached - 1 <= edited.step <= edited.reached


@pytest.mark.parametrize(
    "broken",
    [
        [],
        {"why": 1},
        {"learnt": [1]},
        {"verdict": "better"},
        {"step": -1},
        {"seen": 1},
        {"reached": "1"},
        {"percent": "25"},
    ],
)
def test_an_unreadable_part_is_left_out(broken: object) -> None:
    assert canary_state(broken) == CanaryState()
