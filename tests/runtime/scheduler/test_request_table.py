"""A request's phase changes in the request table alone, as the table of transitions says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime import scheduler
from sluice_runtime.scheduler.request import TRANSITIONS, Phase, Request, request_from
from sluice_runtime.scheduler.request_table import RequestTable

from tests.runtime.scheduler.building import request

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


def test_no_other_module_changes_a_phase() -> None:
    modules = Path(scheduler.__file__).parent.rglob("*.py")
    writers = {path.stem for path in modules if re.search(r"\.phase = ", path.read_text())}
    assert writers == {"request_table"}
