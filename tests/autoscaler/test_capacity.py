"""The queueing formulas against what is known of queues."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

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
from sluice_autoscaler.itl import itl_model
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


def test_a_steep_rise_is_seen_before_half_a_minute_is_over() -> None:
    steep = arrivals(2, 2, 2)[:37] + [Measured(interval_seconds=2.0, arrived_seconds=16.0)] * 8
    assert forecast(steep[:-1], steep[-1], 30.0).offered_engines == pytest.approx(12.0)


@pytest.mark.parametrize(("errors", "is_sure"), [(3.2, False), (3.8, True)])
def test_a_rise_of_three_standard_errors_may_be_chance(errors: float, is_sure: bool) -> None:
    steady = [Measured(interval_seconds=1.0, arrived_seconds=3.0)] * 200
    dispersion = forecast(steady[:-1], steady[-1], 30.0).dispersion_seconds
    squared = errors * errors * dispersion / 15  # rise² = squared * (former mean + mean)
    mean = 3.0 + (squared + math.sqrt(squared * (squared + 24.0))) / 2
    rising = [*steady[:-15], *[Measured(interval_seconds=1.0, arrived_seconds=mean)] * 15]
    assert (forecast(rising[:-1], rising[-1], 30.0).offered_engines >= mean) == is_sure


def test_a_stream_of_few_large_prompts_hardly_ever_looks_like_a_rise() -> None:
    """At every decision there is the chance of an error."""
    draw, ticks, most = random.Random(3), list[Measured](), list[float]()
    for _ in range(900):
        work = 3.0 * sum(draw.random() < 0.15 for _ in range(2))
        tick = Measured(interval_seconds=2.0, arrived_seconds=work)
        most.append(forecast(ticks[-300:], tick, 30.0).offered_engines)
        ticks.append(tick)
    assert sum(engines > 1.0 for engines in most[300:]) / 600 < 0.02


def test_an_answer_is_taken_to_be_at_least_as_long_as_those_that_run() -> None:
    def running(seconds: int, ended: int, interval: int = 2) -> float:
        ticks = [
            Measured(interval_seconds=interval, running_requests=8, finished_requests=0)
            for _ in range(seconds // interval)
        ]
        last = replace(ticks[-1], finished_requests=ended)
        return forecast([*ticks[:-1], last], last, 30.0).answer_seconds

    assert running(8, 0) == 10.0, "nothing is known yet"
    assert running(122, 0) == 120.0
    assert running(120, 0, interval=120) == 10.0, "they may have just begun"
    assert running(120, 40) == 24.0


def test_the_time_between_tokens_has_no_pattern_of_the_arrivals() -> None:
    """Prompts come every third sample; engines report a mean over ten seconds."""
    ticks = [
        Measured(
            interval_seconds=2.0,
            arrived_seconds=(0.0, 0.0, 6.0)[at % 3],
            running_requests=10 + at % 20,
            itl_seconds=0.08,
            engines=2,
        )
        for at in range(120)
    ]
    models = [itl_model(ticks[:end], ticks[end]) for end in range(90, 120)]
    bases = [model.base_seconds for model in models if model is not None]
    assert len(bases) == 30
    assert max(bases) - min(bases) < 0.015


def test_a_time_in_which_no_answer_runs_is_not_one_of_few_that_run() -> None:
    idle = [Measured(interval_seconds=2.0, engines=2)] * 4
    busy = Measured(interval_seconds=2.0, engines=2, running_requests=8, itl_seconds=0.08)
    assert itl_model(idle, busy) == ItlModel(0.0, 0.02)


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
