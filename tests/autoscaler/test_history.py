"""The share of requests in time is that of what engines counted within the last minutes."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Answered
from sluice_autoscaler.history import History, Tick, answered_lately, answered_since
from sluice_autoscaler.journal import JournalLine
from sluice_autoscaler.sample import EngineSample, Sample

from tests.autoscaler.building import DECODE, MIXED, PREFILL, engine, pool, seen, wanting

QUIET = wanting()


def counting(requests: int | None, in_time: int | None, **values: Any) -> EngineSample:
    if requests is None or in_time is None:
        return engine("a", **values)
    values |= {"slo_requests_total": requests, "slo_in_time_total": in_time}
    return engine(values.pop("name", "a"), **values)


def ticked(*samples: Sample) -> History:
    history = History()
    for sample in samples:
        history = history.with_tick(Tick(sample, decide(QUIET, history, sample)))
    return history


def test_the_share_is_of_what_ended_within_five_minutes() -> None:
    history = ticked(
        seen([counting(100, 0)], at=0.0),
        seen([counting(200, 0)], at=2.0),
        seen([counting(203, 2)], at=290.0),
        seen([counting(206, 4)], at=310.0),
    )
    assert answered_lately(history).in_time_percent == 66.6


@pytest.mark.parametrize(
    ("late", "answered"),
    [
        (0, Answered(12, 9)),
        (3, Answered(12, 9)),  # counted within the five minutes
        (95, Answered(104, 9)),  # most were counted before
    ],
)
def test_requests_that_wait_late_are_missed_however_long_they_wait(
    late: int, answered: Answered
) -> None:
    history = ticked(
        seen([counting(100, 40, slo_late_requests=20)], at=0.0),
        seen([counting(200, 40, slo_late_requests=95)], at=2.0),
        seen([counting(200, 40, slo_late_requests=95)], at=305.0),
        seen([counting(212, 49, slo_late_requests=late)], at=310.0),
    )
    assert answered_lately(history) == answered


def test_requests_that_wait_late_at_the_first_sample_are_missed() -> None:
    history = ticked(seen([counting(107, 0, slo_late_requests=107)], at=0.0))
    assert answered_lately(history) == Answered(107, 0)
    odd = counting(107, 0, slo_late_requests=107, queued_requests=-1)
    assert answered_lately(ticked(seen([odd], at=0.0))) == Answered()
    assert answered_lately(ticked(seen(None, at=0.0))) == Answered()


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (counting(10, 9), counting(14, 12), (4, 3)),
        (counting(10, 9), counting(14, 12, condition="draining"), (4, 3)),
        (counting(10, 9), counting(14, 12, epoch="2"), (0, 0)),
        (counting(10, 9), counting(14, 12, name="b"), (0, 0)),
        (counting(10, 9), counting(4, 2), (0, 0)),
        (counting(None, None), counting(4, 2), (0, 0)),
        (counting(10, 1), counting(12, 9), (2, 2)),
        (counting(10, 1), counting(12, 2, queued_requests=-1), (0, 0)),
    ],
)
def test_an_engine_counts_from_its_second_report(
    old: EngineSample, new: EngineSample, found: tuple[int, int]
) -> None:
    assert answered_since(seen([old]), seen([new])) == Answered(*found)
    assert answered_since(None, seen([new])) == Answered()
    assert answered_since(seen(None), seen([new])) == Answered()


def test_the_pool_that_answers_need_not_be_scaled_itself() -> None:
    def sample(at: float, **counts: int) -> Sample:
        engines = [engine("p", PREFILL), engine("d", DECODE, **counts)]
        return seen(engines, pool(PREFILL, 1), at=at)

    settings, history = wanting(PREFILL), History()
    for each in (
        sample(0.0, slo_requests_total=0, slo_in_time_total=0),
        sample(2.0, slo_requests_total=8, slo_in_time_total=6),
    ):
        history = history.with_tick(Tick(each, decide(settings, history, each)))
    assert answered_lately(history).in_time_percent == 75.0


def test_nothing_is_said_without_answers() -> None:
    quiet = ticked(seen([engine()], at=0.0), seen([engine()], at=2.0))
    assert answered_lately(History()).in_time_percent is None
    assert answered_lately(quiet).in_time_percent is None


def test_a_journal_keeps_what_was_counted() -> None:
    history = ticked(seen([counting(0, 0)], at=0.0), seen([counting(4, 3)], at=2.0))
    last = history.last
    assert last
    line = JournalLine(settings=QUIET, sample=last.sample, decision=last.decision)
    assert JournalLine.model_validate_json(line.text()).decision.answered == Answered(4, 3)
    assert last.decision.pools[MIXED].reason == "Enough"
