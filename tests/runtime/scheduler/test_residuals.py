"""The bound on how far steps are over their prediction holds for steps of any spread."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.residuals import HICCUP, STEPS, Residuals

from tests.examples import examples

Draw = Callable[[random.Random], float]

MACHINES: dict[str, Draw] = {
    "even": lambda draw: draw.lognormvariate(0, 0.05),
    "uneven": lambda draw: draw.lognormvariate(0, 0.2),
    "some slow steps": lambda draw: draw.lognormvariate(0, 0.03) * draw.choice([1] * 39 + [1.4]),
    "two speeds": lambda draw: draw.choice([0.8, 1.2]) * draw.lognormvariate(0, 0.02),
    "exponential": lambda draw: 0.9 + draw.expovariate(10),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("share", [0.9, 0.95, 0.99, 0.995])
def test_so_many_steps_are_over_the_bound_as_are_allowed(machine: str, share: float) -> None:
    """All steps count, from the first on."""
    draw, residuals, steps = random.Random(1), Residuals(), 20_000
    over = 0
    for _ in range(steps):
        ratio = MACHINES[machine](draw)
        over += ratio > residuals.bound(share)
        residuals.add(ratio)
    assert over <= 1.15 * (1 - share) * steps
    assert over >= 0.4 * (1 - share) * steps, "more is kept back than need be"


def test_a_hiccup_of_the_machine_is_not_remembered() -> None:
    residuals = Residuals()
    for _ in range(20):
        residuals.add(1.0)
    before = residuals.bound(0.99)
    residuals.add(HICCUP)
    residuals.add(50.0)
    assert residuals.bound(0.99) == before


def test_before_there_is_data_some_spread_is_taken_for_granted() -> None:
    assert 1.05 < Residuals().bound(0.95) < 1.1
    assert Residuals().bound(0.99) > Residuals().bound(0.95)


@given(ratios=st.lists(st.floats(0.1, 3), max_size=2 * STEPS), share=st.floats(0.5, 0.999))
@examples(60)
def test_the_bound_is_of_the_last_steps_only(ratios: list[float], share: float) -> None:
    whole, last = Residuals(), Residuals()
    kept = [ratio for ratio in ratios if ratio < HICCUP][-STEPS:]
    for ratio in ratios:
        whole.add(ratio)
    for ratio in kept:
        last.add(ratio)
    assert whole.bound(share) == last.bound(share)
    if kept and int((1 - share) * (len(kept) + 1)) == 0:
        assert whole.bound(share) >= max(kept)
