"""The story of a ramp: its arrivals, and the fleet that its requests needed."""

from __future__ import annotations

import pytest

from e2e.stories.ramp import Answer, Hindsight, Ramp

ROWS, START_SECONDS = 2, 5.0
NONE_MORE, ONE_MORE, NO_HOLD = 0, 1, 0.0


def held(*times: tuple[float, float]) -> list[Answer]:
    """Requests from one moment to another."""
    return [Answer(begun, begun, ended, tokens=1) for begun, ended in times]


def test_the_rate_of_arrivals_rises_evenly_and_they_are_the_same_each_time() -> None:
    ramp = Ramp(seconds=1000.0, first_rate=1.0, last_rate=3.0, seed=7)
    arrivals = list(ramp.arrivals())
    quarters = [sum(q <= at / 250 < q + 1 for at in arrivals) for q in range(4)]
    assert quarters == pytest.approx([312, 437, 562, 687], rel=0.1)
    assert arrivals == sorted(arrivals) == list(ramp.arrivals())


def test_the_time_between_tokens_is_a_mean() -> None:
    answer = Answer(asked=10.0, first=11.5, ended=13.5, tokens=5)
    assert (answer.ttft_seconds, answer.itl_seconds) == (1.5, 0.5)


def test_an_engine_is_planned_one_start_before_its_first_request() -> None:
    hindsight = Hindsight(held((0, 60), (1, 60), (30, 60)), ROWS, START_SECONDS)
    assert [at for at, _ in hindsight.plans()] == [0, 25]
    assert [engines for _, engines in hindsight.plans()] == [1, 2]


def test_an_engine_is_planned_until_its_last_request_ends_and_for_the_hold() -> None:
    hindsight = Hindsight(held((0, 60), (1, 60), (10, 20)), ROWS, START_SECONDS)
    assert [hindsight.plan(at) for at in (19.9, 20.0)] == [2, 1]
    assert [hindsight.plan(at, hold_seconds=10) for at in (29.9, 30.0)] == [2, 1]


def test_the_plan_is_never_without_an_engine() -> None:
    hindsight = Hindsight(held((0, 1), (9, 10)), ROWS, START_SECONDS)
    assert hindsight.plan(2.0) == 1


def test_a_fleet_that_grows_too_early_or_stays_too_large_is_beyond_the_plan() -> None:
    hindsight = Hindsight(held((0, 60), (1, 60), (30, 40)), ROWS, START_SECONDS)
    early = hindsight.beyond([(0, 1), (22.5, 2)], NONE_MORE, NO_HOLD)
    assert early[:3] == [(22, 2, 1), (23, 2, 1), (24, 2, 1)]
    assert early[3:] == [(second, 2, 1) for second in range(40, 60)]
    assert hindsight.beyond([(0, 1), (25, 2), (52, 1)], NONE_MORE, hold_seconds=12.0) == []
    assert hindsight.beyond([(0, 1), (22.5, 2)], ONE_MORE, NO_HOLD) == []
