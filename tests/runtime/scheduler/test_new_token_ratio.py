"""The ratio learns from completions, decays, and rises after a retraction."""

from __future__ import annotations

import pytest
from sluice_runtime.scheduler.request import Request, request_from
from sluice_runtime.scheduler.request_table import NewTokenRatio

from tests.runtime.scheduler.building import request


def test_the_ratio_falls_to_what_was_learnt_and_not_below_the_floor() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.value == 0.7
    for _ in range(100):
        ratio.learn(10, 100)
    for _ in range(2000):
        ratio.decay()
    assert ratio.value == pytest.approx(0.7 * 0.14)
    for _ in range(100):
        ratio.learn(90, 100)
    for _ in range(2000):
        ratio.decay()
    assert ratio.value == pytest.approx(0.7 * 0.9)
    ratio.reset()
    assert ratio.value == 0.7


def answering(output: int, most: int) -> Request:
    made = request_from(request("a", 5, most), most)
    made.token_ids += [0] * output
    return made


def test_the_ratio_rises_after_a_retraction_and_stays_at_most_one() -> None:
    ratio = NewTokenRatio(0.1)
    ratio.raise_after_retraction([answering(20, 99), answering(40, 100)])
    assert ratio.value == pytest.approx(0.5)
    ratio.raise_after_retraction([answering(600, 199)])
    assert ratio.value == 1.0


def test_learning_remembers_the_last_hundred() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.beta == 0.5
    for _ in range(100):
        ratio.learn(100, 100)
    for _ in range(50):
        ratio.learn(0, 100)
    assert ratio.beta == pytest.approx(0.5)
