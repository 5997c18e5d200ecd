"""The ratio learns from completions, decays, and rises after a retraction."""

from __future__ import annotations

import pytest
from sluice_runtime.scheduler.request import Request, request_from
from sluice_runtime.scheduler.request_table import NewTokenRatio, Running

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
    assert ratio.average_usage == ratio.beta


def test_before_the_first_completion_the_share_is_a_guess_and_there_is_no_average() -> None:
    ratio = NewTokenRatio(1.0)
    assert (ratio.beta, ratio.average_usage) == (0.5, None)
    ratio.learn(30, 100)
    ratio.learn(0, 100)
    assert ratio.beta == pytest.approx(0.15)
    assert ratio.average_usage == pytest.approx(0.15)


def decoding(name: str, prompt: int, most: int, **fields: bool) -> Request:
    """`most`: tokens of its answer that are to come behind the one that its prompt's step drew."""
    made = request_from(request(name, prompt, most + 1, **fields), most + 1)
    made.computed_tokens = prompt
    return made


def test_what_is_saved_is_the_share_of_memory_that_is_not_reserved() -> None:
    """Half of 2,048 tokens beside a prompt of 1,000: a third of the memory is left to others."""
    running = Running(16)
    assert running.saved_share(0.5) == 0.0
    first = decoding("a", 1000, 2048)
    running.join(first)
    assert running.saved_share(0.5) == pytest.approx(1024 / 3048)
    assert running.saved_share(1.0) == 0.0
    other = decoding("b", 1000, 2048, ignore_eos=True)  # reserved as a whole
    running.join(other)
    assert running.saved_share(0.5) == pytest.approx(1024 / 6096)
    for made in (first, other):
        made.token_ids += [0] * 48
    running.advance([first, other], 48)
    assert running.saved_share(0.5) == pytest.approx(1000 / 6096)
    running.leave(other)
    assert running.saved_share(0.5) == pytest.approx(1000 / 3048)
    running.check_integrity()
    running.leave(first)
    assert running.saved_share(0.5) == 0.0


def test_beyond_the_most_that_is_reserved_all_is_saved() -> None:
    running = Running(16)
    running.join(decoding("a", 1904, 8096))
    assert running.saved_share(1.0) == pytest.approx(4000 / 10_000)
    assert running.saved_share(0.5) == pytest.approx(6048 / 10_000)
