"""Fleet mode against exact mode: at most 5 % apart, and much less to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from unittest.mock import patch

import pytest
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_simulator.costs import cost_named
from sluice_simulator.percentiles import Spread
from sluice_simulator.report import Summary, summarise
from sluice_simulator.traces.request import Trace
from sluice_simulator.traces.synthetic import Workload, synthesise

from tests.simulator.simulating import replay, requests, settings

H200 = cost_named("h200-llama3-8b")
APART = 0.05


@dataclass(frozen=True)
class Case:
    workload: Workload
    pool_tokens: int = 262_144
    policy: str = "fcfs"
    overlap: bool = False


CASES = {
    "few": Case(Workload("chat", 60, 15.0, (50, 800), (20, 400), 4, 1)),
    "light": Case(Workload("chat", 300, 15.0, (50, 800), (20, 400), 4, 1)),
    "heavy": Case(Workload("chat", 400, 60.0, (50, 800), (20, 400), 4, 1)),
    "waits-for-pages": Case(Workload("unlike", 150, 8.0, (50, 12_000), (20, 600)), 60_000),
    "at-once": Case(Workload("offline", 150, None, (100, 1_024), (100, 1_024)), 60_000),
    "documents": Case(Workload("rag", 150, 4.0, (1_500, 2_500), (50, 300), 50, 4), 60_000),
    "overlapped": Case(Workload("chat", 300, 15.0, (50, 800), (20, 400), 4, 1), overlap=True),
    "overlapped-queue": Case(
        Workload("unlike", 150, 8.0, (50, 12_000), (20, 600)), 60_000, overlap=True
    ),
    "shortest-first": Case(Workload("unlike", 150, 8.0, (50, 12_000), (20, 600)), 60_000, "sjf"),
}


def _both(case: Case, seed: int) -> tuple[Summary, Summary]:
    trace = synthesise(case.workload, seed)
    how = settings(pool_tokens=case.pool_tokens, policy=case.policy)
    options = {"cost": H200, "max_tokens": 800, "overlap": case.overlap}
    exact, fleet = (replay(trace, how, fleet=fleet, **options) for fleet in (False, True))
    return summarise(exact.record, exact.status), summarise(fleet.record, fleet.status)


def _figures(summary: Summary) -> Iterator[tuple[str, float]]:
    spreads: dict[str, Spread] = {"ttft": summary.ttft, "itl": summary.itl, "e2e": summary.e2e}
    for name, spread in spreads.items():
        for part in ("mean", "p50", "p90", "p99"):
            yield f"{name} {part}", getattr(spread, part)
    yield "output rate", summary.output_rate
    yield "seconds", summary.seconds
    yield "busy", summary.busy_seconds


LEVELS: dict[tuple[str, int], pytest.MarkDecorator | tuple[()]] = {
    ("few", 0): (),
    **dict.fromkeys(
        [("light", 0), ("waits-for-pages", 0), ("overlapped-queue", 0)], pytest.mark.process
    ),
}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(*case, marks=LEVELS.get(case, pytest.mark.full))
        for case in product(CASES, range(8))
    ],
)
def test_it_is_at_most_5_percent_from_exact(name: str, seed: int) -> None:
    exact, fleet = _both(CASES[name], seed)
    assert fleet.finished == exact.finished
    assert fleet.output_tokens == exact.output_tokens
    assert fleet.itl.count == exact.itl.count
    found = dict(_figures(fleet))
    apart = {key: found[key] / value - 1 for key, value in _figures(exact)}
    assert max(map(abs, apart.values())) <= APART, apart


def _steps_scheduled(trace: Trace, *, fleet: bool) -> int:
    with patch.object(
        Scheduler, "next_batch", autospec=True, side_effect=Scheduler.next_batch
    ) as n:
        replay(trace, fleet=fleet)
    return n.call_count


def test_without_a_queue_it_schedules_only_what_happens() -> None:
    trace = requests(*[(3.0 * n, 100, 100) for n in range(5)])
    assert _steps_scheduled(trace, fleet=False) > 500
    assert _steps_scheduled(trace, fleet=True) < 60


def test_without_a_queue_nothing_is_apart() -> None:
    trace = requests(*[(0.37 * n, 100 + n, 150) for n in range(20)])
    exact, fleet = (replay(trace, fleet=fleet) for fleet in (False, True))
    for one, other in zip(exact.record.timelines, fleet.record.timelines, strict=True):
        assert one.tokens == other.tokens
        assert one.first_token_seconds == pytest.approx(other.first_token_seconds)
        assert one.finished_seconds == pytest.approx(other.finished_seconds)
    assert exact.status.steps == fleet.status.steps
    assert sum(exact.record.gaps.counts) == sum(fleet.record.gaps.counts)


def test_retractions_happen_as_they_do() -> None:
    trace = requests(*[(0.0, 50, 300)] * 40)
    how = settings(pool_tokens=3_000, conservativeness=0.01)
    exact, fleet = (replay(trace, how, max_tokens=300, fleet=fleet) for fleet in (False, True))
    assert fleet.status.retractions > 10
    assert fleet.status.retractions == pytest.approx(exact.status.retractions, rel=0.2)
    assert [line.tokens for line in fleet.record.timelines] == [300] * 40
