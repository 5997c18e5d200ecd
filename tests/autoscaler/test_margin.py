"""The margin follows the share of late requests: down slowly, back at once, and only by counts that
show what the pool's size does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Answered, Decision, Margin
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.journal import JournalLine
from sluice_autoscaler.margin import (
    GIVEN,
    KNOWN_MINUTES,
    LEAST,
    margin_message,
    next_margin,
)

from tests.autoscaler.building import MIXED, RATE, Service, engine, pool, seen, wanting

ONE_PERCENT = 0.01


def after(
    minutes: int,
    margin: Margin | None = None,
    *,
    requests: int = 200,
    late: int = 0,
    is_clear: bool = True,
) -> Margin:
    """The margin after so many more minutes, each of them with that many requests."""
    margin = margin or Margin(minute_began_seconds=0.0)
    for _ in range(minutes):
        at, answered = margin.minute_began_seconds + 60.0, Answered(requests, requests - late)
        margin = next_margin(margin, at, answered, ONE_PERCENT, is_clear=is_clear)
    return margin


def test_the_margin_falls_slowly_once_enough_minutes_and_requests_are_known() -> None:
    assert after(KNOWN_MINUTES - 1).factor == 1.0
    assert after(KNOWN_MINUTES).factor == pytest.approx(1 - GIVEN)
    assert after(KNOWN_MINUTES + 9, requests=60).factor == 1.0  # fewer than thousands
    assert after(KNOWN_MINUTES + 100).factor == LEAST
    assert after(200, requests=9).factor == 1.0  # no load


def test_late_requests_raise_the_margin_at_once_up_to_one() -> None:
    low = after(60)
    assert after(1, low, late=1).factor == low.factor  # within what is allowed
    assert after(1, low, late=4).factor > low.factor + GIVEN
    found = after(1, replace(low, factor=0.9), late=10)
    assert found.factor == 1.0
    assert after(1, found).factor < 1.0  # what is known stays known


def test_a_bad_minute_is_learnt_anew() -> None:
    """A burst, or work of another kind."""
    bad = after(1, after(60), late=11)
    assert (bad.factor, bad.minutes, bad.requests) == (1.0, 0, 0)
    assert after(KNOWN_MINUTES - 1, bad).factor == 1.0
    assert after(KNOWN_MINUTES, bad).factor < 1.0
    busy = after(1, after(60), requests=2000, late=12)  # five times a mean minute's, at any load
    assert busy.minutes == 0


def test_a_minute_with_starts_or_doubts_gives_nothing_but_takes_back() -> None:
    low = replace(after(60), factor=0.8)
    assert after(1, low, is_clear=False).factor == low.factor
    assert after(1, low, late=4, is_clear=False).factor > low.factor


def test_a_gap_leaves_the_margin_and_its_minute_does_not_count() -> None:
    low = after(60)
    at = low.minute_began_seconds
    for seconds in (at + 500.0, at - 500.0):  # an operator that was away; another clock
        found = next_margin(low, seconds, Answered(900, 0), ONE_PERCENT, is_clear=True)
        assert (found.factor, found.minute_began_seconds) == (low.factor, seconds)
        assert found.minute_requests == 0


def test_the_message_says_what_the_margin_was_learnt_from() -> None:
    margin = Margin(factor=0.6, minutes=40, requests=8000, late=12)
    assert margin_message(margin) == ", margin 0.60: 99.8 % were in time for 40 minutes"
    assert margin_message(replace(margin, factor=1.0)) == ""


def looked(minutes: int, counts: Mapping[str, int]) -> tuple[Service, Decision]:
    """A pool under a steady load, looked at each minute. `counts`: by which each minute adds to the
    engines' counts."""
    service = Service(wanting(ttft_seconds=2.0, percentile=99.0), {MIXED: 6})
    load = {"prompt_tokens": 2 * RATE, "running_requests": 60}
    for minute in range(1, minutes + 1):
        totals = {key: count * minute for key, count in counts.items()}
        decision = service.look({MIXED: load | totals}, seconds=60.0)
    return service, decision


def test_engines_in_time_let_a_pool_shrink_further_and_late_ones_do_not() -> None:
    _, without = looked(60, {})
    _, in_time = looked(60, {"slo_requests_total": 6000, "slo_in_time_total": 6000})
    _, late = looked(60, {"slo_requests_total": 6000, "slo_in_time_total": 5800})
    assert without.margin.factor == late.margin.factor == 1.0
    assert in_time.margin.factor < 0.8
    sizes = [found.pools[MIXED].desired for found in (without, late, in_time)]
    assert sizes[0] == sizes[1] > sizes[2]
    assert "margin 0." in in_time.pools[MIXED].message


def test_without_counts_every_decision_is_as_without_a_margin() -> None:
    service, decision = looked(40, {})
    assert decision.margin == replace(
        Margin(), minute_began_seconds=decision.margin.minute_began_seconds
    )
    last = service.history.last
    assert last
    ticks = [
        replace(tick, decision=replace(tick.decision, margin=Margin()))
        for tick in service.history.ticks[:-1]
    ]
    assert decide(service.settings, History(tuple(ticks)), last.sample) == decision


@pytest.mark.parametrize(
    ("pods", "report", "is_clear"),
    [
        ({}, {}, True),
        ({"waiting": 1}, {}, False),
        ({"unschedulable": 1}, {}, False),
        ({"surplus": 1, "moving": 1}, {}, False),
        ({}, {"age_seconds": 99.0}, False),
        ({}, {"condition": "failing"}, False),
        ({"ready": 0}, {}, False),
    ],
)
def test_the_margin_does_not_fall_in_outages_and_moves(
    pods: dict[str, int], report: dict[str, Any], *, is_clear: bool
) -> None:
    engines = [engine("a"), engine("b", **report)]
    pods = dict(pods)
    waiting = pods.pop("waiting", 0)
    sample = replace(seen(engines, pool(MIXED, 2, **pods)), waiting_requests=waiting)
    history = History()
    began = sample.time_seconds - 1.0
    former = decide(wanting(), history, sample)
    former = replace(former, margin=Margin(minute_began_seconds=began))
    history = history.with_tick(Tick(replace(sample, time_seconds=began), former))
    assert decide(wanting(), history, sample).margin.minute_is_clear is is_clear


def test_a_journal_keeps_the_margin() -> None:
    service, decision = looked(30, {"slo_requests_total": 600, "slo_in_time_total": 600})
    last = service.history.last
    assert last
    line = JournalLine(settings=service.settings, sample=last.sample, decision=decision)
    read = JournalLine.model_validate_json(line.text())
    assert read.decision.margin == decision.margin != Margin()
    assert (
        JournalLine.model_validate_json(
            line.model_copy(update={"decision": replace(decision, margin=Margin())}).text()
        ).decision.margin
        == Margin()
    )
