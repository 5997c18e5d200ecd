"""The queueing formulas against what is known of queues."""

from __future__ import annotations

import heapq
import random

import pytest
from sluice_autoscaler.capacity import (
    MAX_ENGINES,
    Promise,
    engines_for,
    engines_for_answers,
    erlang_c,
    late_share,
)
from sluice_autoscaler.forecast import Forecast, forecast, kv_growth
from sluice_autoscaler.measured import ItlModel, Measured
from sluice_autoscaler.stabilise import window_seconds

PROMISE = Promise(queue_seconds=1.0, itl_seconds=0.15, share=0.99)


@pytest.mark.parametrize(
    ("servers", "offered", "waits"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (5, 4.0, 0.5541), (3, 0.0, 0)]
)
def test_how_many_have_to_wait_is_erlangs_formula(
    servers: int, offered: float, waits: float
) -> None:
    assert erlang_c(servers, offered) == pytest.approx(waits, abs=1e-4)


@pytest.mark.parametrize("engines", [1, 4])
def test_as_many_are_late_as_in_a_queue_of_exponential_prompts(engines: int) -> None:
    """Of such work the dispersion is twice its mean, and the formula is exact."""
    busy, mean, draw = 0.6, 0.2, random.Random(1)
    free, now, late, count = [0.0] * engines, 0.0, 0, 60_000
    for _ in range(count):
        now += draw.expovariate(busy * engines / mean)
        begins = max(now, heapq.heappop(free))
        heapq.heappush(free, begins + draw.expovariate(1 / mean))
        late += begins - now > 0.2
    expected = late_share(engines, busy, 2 * mean, 0.2)
    assert late / count == pytest.approx(expected, rel=0.15)


def test_answers_leave_prompts_what_the_promise_does_not_need_for_them() -> None:
    load = Forecast(offered_engines=2.0, dispersion_seconds=0.3)
    alone = engines_for(load, PROMISE)
    some = engines_for(load, PROMISE, ItlModel(0.05, 0.0), running=10)
    many = engines_for(load, PROMISE, ItlModel(0.05, 0.001), running=200)
    assert alone < some < many
    assert engines_for(load, PROMISE, ItlModel(0.14, 0.0), running=10) == alone, "none helps"


@pytest.mark.parametrize("offered", [0.0, 0.01])
def test_answers_alone_need_engines_for_the_time_between_their_tokens(offered: float) -> None:
    load, itl = Forecast(offered_engines=offered), ItlModel(0.02, 0.001)
    assert engines_for(load, PROMISE, itl, running=600) == 5
    assert engines_for_answers(itl, 0.15, running=600) == 5


def test_a_pool_that_only_decodes_has_enough_for_the_time_between_tokens() -> None:
    assert engines_for_answers(ItlModel(0.05, 0.001), 0.15, running=250) == 3
    assert engines_for_answers(ItlModel(0.2, 0.001), 0.15, running=250) == MAX_ENGINES


def arrivals(*engines: float) -> list[Measured]:
    """Ticks of two seconds; a mean of so many engines in each half minute."""
    return [
        Measured(interval_seconds=2.0, arrived_seconds=2.0 * mean)
        for mean in engines
        for _ in range(15)
    ]


def test_a_sure_rise_goes_on_until_an_engine_is_ready() -> None:
    steady, rising = arrivals(3, 3, 3), arrivals(3, 4, 6)
    assert forecast(steady[:-1], steady[-1], 30.0).offered_engines == pytest.approx(3.0)
    soon, late = (
        forecast(rising[:-1], rising[-1], ahead).offered_engines for ahead in (10.0, 30.0)
    )
    assert 6.0 < soon < late < 6.0 + 2.0 * 1.5
    step = arrivals(2, 2, 5)
    assert forecast(step[:-1], step[-1], 600.0).offered_engines == pytest.approx(7.5)
    falling = arrivals(6, 2, 1)
    assert forecast(falling[:-1], falling[-1], 60.0).offered_engines < 3.5


def test_page_use_may_grow_by_more_than_half_only_if_it_has_grown_for_a_minute() -> None:
    def growth(seconds: int) -> float:
        """Use grows by a twentieth of an engine a second."""
        used = [1.0] * 60 + [1.0 + 0.05 * second for second in range(1, seconds + 1)]
        ticks = [Measured(interval_seconds=1.0, kv_engines=kv, engines=2) for kv in used]
        return kv_growth(ticks[:-1], ticks[-1], ahead_seconds=45.0) / ticks[-1].kv_engines

    assert growth(0) == 0.0
    assert growth(20) == pytest.approx(0.5)
    assert growth(60) == pytest.approx(0.05 * 45 / 4)


def test_a_pool_shrinks_after_starts_and_answers() -> None:
    assert window_seconds(boot_seconds=10.0, answer_seconds=5.0) == 60.0
    assert window_seconds(boot_seconds=45.0, answer_seconds=5.0) == 90.0
    assert window_seconds(boot_seconds=10.0, answer_seconds=40.0) == 120.0
    assert window_seconds(boot_seconds=900.0, answer_seconds=40.0) == 300.0
