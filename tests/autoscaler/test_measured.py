"""What a pool did since the sample before: work, counted by the rate that fits its use."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_autoscaler.forecast import forecast
from sluice_autoscaler.measured import Measured, marginal_rate, measure
from sluice_autoscaler.reports import Reports
from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import MIN_PROMPT_SHARE

from tests.autoscaler.building import DECODE, MIXED, PREFILL, RATE, engine, seen

ARRIVED = 8000
"""Tokens of prompts, between two samples."""


def measured(*engines: EngineSample, known: Measured | None = None) -> Measured:
    """Of engines that were there before with no prompt received."""
    before = [engine(each.name, each.role, prompt_tokens_total=0) for each in engines]
    now, earlier = seen(engines, at=4.0), seen(before, at=2.0)
    return measure(Reports(engines), now, earlier, known or Measured())


def busy(name: str = "a", role: Role = MIXED, **load: Any) -> EngineSample:
    return engine(name, role, **{"prompt_tokens_total": ARRIVED} | load)


def test_what_arrives_is_counted_without_what_decodes_and_what_waits_with_it() -> None:
    now = measured(busy(queued_tokens=6000, marginal_prefill_tokens_per_second=2 * RATE))
    assert now.arrived_seconds == ARRIVED / (2 * RATE)
    assert now.queued_seconds == 6000 / RATE
    assert now.prefill_tokens_per_second == RATE
    assert now.marginal_prefill_tokens_per_second == 2 * RATE
    assert forecast([], now, 30.0).prompt_share == 0.5


def test_work_of_an_engine_that_reports_one_rate_is_counted_by_that() -> None:
    now = measured(busy("old"), busy("new", marginal_prefill_tokens_per_second=2 * RATE))
    assert now.arrived_seconds == ARRIVED / RATE + ARRIVED / (2 * RATE)
    alone = measured(busy("old"))
    assert alone.arrived_seconds == ARRIVED / RATE
    assert forecast([], alone, 30.0).prompt_share == 1.0


def test_a_cold_engine_is_counted_by_the_rates_of_the_others_or_of_before() -> None:
    cold = busy("cold", finished_requests_total=0, prefill_tokens_per_second=RATE / 50)
    now = measured(cold, busy("warm", marginal_prefill_tokens_per_second=2 * RATE))
    assert now.arrived_seconds == 2 * ARRIVED / (2 * RATE)
    silent = busy(prefill_tokens_per_second=None)
    later = measured(silent, known=now)
    assert later.arrived_seconds == ARRIVED / (2 * RATE)
    assert forecast([], later, 30.0).prompt_share == 0.5
    unknown = Measured(prefill_tokens_per_second=RATE)  # of a journal that an older operator wrote
    assert measured(silent, known=unknown).arrived_seconds == ARRIVED / RATE


def test_all_the_time_of_a_prefill_engine_goes_to_prompts() -> None:
    now = measured(busy("p", PREFILL, marginal_prefill_tokens_per_second=2 * RATE))
    assert now.arrived_seconds == ARRIVED / RATE
    assert marginal_rate(busy("d", DECODE, marginal_prefill_tokens_per_second=2 * RATE)) == RATE


@pytest.mark.parametrize(
    ("reported", "believed"), [(0.5, 1.0), (1.0, 1.0), (3.0, 3.0), (1e9, 1 / MIN_PROMPT_SHARE)]
)
def test_a_rate_that_no_step_can_have_is_not_believed(reported: float, believed: float) -> None:
    assert marginal_rate(busy(marginal_prefill_tokens_per_second=reported * RATE)) == pytest.approx(
        believed * RATE
    )
