"""Requests and tokens a second, and TTFT, from two looks."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from sluice_contract.wire.load import EngineLoad
from sluice_operator.cli.top.snapshot import RouterCounts, RouterLoad, Snapshot
from sluice_operator.cli.top.traffic import TrafficRates, engine_rates, ledger, traffic

from tests.operator.cli.top.recorded import CHAT, NOW, counts, load, service_load


def look(
    seconds: float, *engines: EngineLoad, before: Snapshot | None = None, **routers: RouterCounts
) -> Snapshot:
    return Snapshot(
        NOW + timedelta(seconds=seconds),
        (),
        loads={CHAT: RouterLoad("a", service_load(*engines))},
        counts={CHAT: routers} if routers else {},
        before=before,
    )


def busy(name: str, role: str, at: float, prompt: int, generated: int) -> EngineLoad:
    totals = {"prompt_tokens_total": prompt, "generated_tokens_total": generated}
    return load(name, role, 0, 1, 0, at=at, **totals)


def test_each_token_counts_once_over_its_report_s_own_time() -> None:
    first = look(0, busy("p", "prefill", 5.0, 100, 0), busy("d", "decode", 5.0, 0, 50))
    engines = busy("p", "prefill", 9.0, 900, 8), busy("d", "decode", 10.0, 800, 550)
    second = look(4, *engines, before=first)
    assert engine_rates(CHAT, second)["d"].generated == 100.0
    assert traffic(CHAT, second) == TrafficRates(4.0, None, 200.0, 100.0, None)


def test_an_engine_that_is_new_or_restarted_counts_from_the_next_look_on() -> None:
    first = look(0, busy("a", "mixed", 5.0, 100, 0), busy("b", "mixed", 5.0, 0, 0))
    again = busy("a", "mixed", 9.0, 0, 0)
    assert again.report is not None
    restarted = again.model_copy(
        update={"report": again.report.model_copy(update={"epoch": "later"})}
    )
    engines = restarted, busy("b", "mixed", 5.0, 0, 0), busy("c", "mixed", 9.0, 1, 1)
    assert engine_rates(CHAT, look(4, *engines, before=first)) == {}
    assert traffic(CHAT, look(4, *engines, before=first)) is None


def test_requests_are_those_that_ended_at_any_router() -> None:
    first = look(0, a=counts({}, answered=5), b=counts({}, answered=100, lost=1))
    later = {"a": counts({}, answered=9, refused=2), "b": counts({}, answered=104, lost=1)}
    second = look(5, before=first, **later, new=counts({}, answered=70))
    assert traffic(CHAT, second) == TrafficRates(5.0, 2.0, None, None, None)
    restarted = look(5, before=first, a=counts({}, answered=1), b=later["b"])
    assert traffic(CHAT, restarted) == TrafficRates(5.0, 0.8, None, None, None)
    assert ledger(CHAT, second) == {
        "answered": 183, "resumed": 0, "refused": 2, "abandoned": 0, "lost": 1,
    }  # fmt: skip
    assert ledger(CHAT, replace(second, counts={})) is None


@pytest.mark.parametrize(
    ("streams", "ttft"),
    [
        ({0.1: 10}, (0.05, 0.095)),
        ({0.1: 50, 0.5: 50}, (0.1, 0.46)),
        ({2.5: 100}, (1.5, 2.4)),
        ({0.5: 90, math.inf: 10}, (0.1 + 0.4 * 50 / 90, math.inf)),
        ({}, None),
    ],
)
def test_ttft_is_interpolated_within_its_bucket(
    streams: dict[float, int], ttft: tuple[float, ...] | None
) -> None:
    earlier = {0.1: 1000, 2.5: 7}
    first = look(0, a=counts(earlier))
    both = {bound: earlier.get(bound, 0) + streams.get(bound, 0) for bound in earlier | streams}
    found = traffic(CHAT, look(5, before=first, a=counts(both)))
    assert found is not None
    assert found.ttft_seconds == (pytest.approx(ttft) if ttft else None)


def test_one_look_has_the_ttft_since_the_start_alone() -> None:
    found = traffic(CHAT, look(0, a=counts({0.1: 10})))
    assert found is not None
    assert found[:4] == (None, None, None, None)
    assert found.ttft_seconds == pytest.approx((0.05, 0.095))
    assert traffic(CHAT, look(0, a=counts({}))) is None
