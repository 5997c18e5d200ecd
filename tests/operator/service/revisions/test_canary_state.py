"""The state of a canary after a person's decision, and at its next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_operator.service.revisions.canary_state import CanaryState, canary_state

LEARNT = {"seen": {"r1": [1, 2]}, "began": "2026-01-02T03:04:05Z", "pods": {}}


def test_a_decision_begins_a_step_and_counts_of_routers_go_on() -> None:
    state = CanaryState(1, "worse", 3, "errors", 2, LEARNT)
    assert state.after(CanaryState(decision=3)) is state, "carried out already"
    tried = state.after(CanaryState(decision=4, seen=state.place))
    assert tried == CanaryState(decision=4, learnt={"seen": {"r1": [1, 2]}})
    held = replace(state, verdict="held").after(CanaryState(2, decision=4, seen="1 held"))
    assert (held.step, held.reached) == (2, 2)


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
    "broken",
    [
        [],
        {"why": 1},
        {"learnt": [1]},
        {"verdict": "better"},
        {"step": -1},
        {"seen": 1},
        {"reached": "1"},
    ],
)
def test_an_unreadable_part_is_left_out(broken: object) -> None:
    assert canary_state(broken) == CanaryState()
