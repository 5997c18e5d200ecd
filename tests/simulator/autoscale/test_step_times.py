"""Steps that are taken at once take as long as one after the other."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.step_times import StepTimes

TIMES = StepTimes(AZURE)
ROWS = st.integers(0, 256)
CONTEXT = st.integers(0, 100_000)


@given(st.integers(1, 300), ROWS, CONTEXT)
def test_a_run_of_steps_takes_what_its_steps_take(steps: int, rows: int, context: int) -> None:
    one_by_one = sum(TIMES.step_seconds(0.0, context + step * rows) for step in range(steps))
    assert math.isclose(TIMES.run_seconds(steps, rows, context), one_by_one, rel_tol=1e-9)


@given(st.integers(1, 300), ROWS, CONTEXT, st.floats(0.01, 0.99))
def test_the_step_that_runs_at_a_moment_is_found(
    steps: int, rows: int, context: int, into: float
) -> None:
    before = TIMES.run_seconds(steps - 1, rows, context)
    after = TIMES.run_seconds(steps, rows, context)
    assert TIMES.steps_by(before + into * (after - before), rows, context) == steps


def test_a_prompt_in_chunks_takes_what_it_takes_at_once() -> None:
    chunks = sum(TIMES.prompt_seconds(500, before) for before in range(0, 2000, 500))
    assert math.isclose(chunks, TIMES.prompt_seconds(2000, 0))


def test_the_longest_prompt_within_a_time_is_found() -> None:
    longest = TIMES.longest_prompt(2.0)
    assert TIMES.idle_seconds(longest) <= 2.0 < TIMES.idle_seconds(longest + 1)
