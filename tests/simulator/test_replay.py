"""Exact mode: the clock, the timelines and the answers of runs that can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_simulator.costs import Cost
from sluice_simulator.report import summarise
from sluice_simulator.text import failures
from sluice_simulator.traces.request import TraceRequest, trace_of
from sluice_simulator.traces.synthetic import Workload, synthesise

from tests.pairwise import matrix
from tests.simulator.simulating import COST, SETTINGS, replay, requests, settings

PRESSED = Workload("pressed", 60, 20.0, (50, 600), (50, 300))


def test_one_request_alone() -> None:
    (line,) = replay(requests((2.0, 1_000, 4))).record.timelines
    assert line.started_seconds == 2.0
    assert line.first_token_seconds == pytest.approx(2.0 + 0.01 + 0.01)
    assert line.finished_seconds == pytest.approx(2.02 + 3 * 0.01001)
    assert line.tokens == 4


def test_a_gap_is_the_time_of_the_step_between() -> None:
    gaps = replay(requests((0.0, 100, 6))).record.gaps
    assert sum(gaps.counts) == 5
    assert gaps.values == pytest.approx([0.01001] * len(gaps.values))


def test_a_prompt_that_comes_during_a_step_waits_for_its_end() -> None:
    first, second = replay(requests((0.0, 1_000, 20), (0.025, 500, 1))).record.timelines
    assert first.first_token_seconds == pytest.approx(0.02)
    # The first decode step runs from 0.02 to 0.03001; the prompt joins the next one.
    assert second.started_seconds == pytest.approx(0.03001)
    assert second.first_token_seconds == pytest.approx(0.03001 + 0.01 + 501e-5)


def test_time_between_requests_is_jumped_over() -> None:
    record = replay(requests((0.0, 10, 1), (3_600.0, 10, 1))).record
    assert record.ended_seconds == pytest.approx(3_600.01, abs=1e-3)
    assert record.busy_seconds == pytest.approx(0.02, abs=1e-3)


def _with_host(seconds: float) -> Cost:
    coefficients = COST.coefficients.model_copy(update={"host": seconds})
    return COST.model_copy(update={"coefficients": coefficients})


def test_host_time_lies_between_steps() -> None:
    replayed = replay(requests((0.0, 1_000, 3)), cost=_with_host(0.005))
    (line,) = replayed.record.timelines
    assert line.first_token_seconds == pytest.approx(0.025)
    assert replayed.record.gaps.values == pytest.approx([0.01501] * 2)
    assert replayed.record.busy_seconds == pytest.approx(0.02 + 2 * 0.01001)


@pytest.mark.parametrize(("host", "first", "gap"), [(0.005, 0.025, 0.01001), (0.03, 0.06, 0.03)])
def test_an_overlapped_loop_waits_for_the_slower_of_host_and_device(
    host: float, first: float, gap: float
) -> None:
    """A host that is slower plans the second step before it looks at the first one's results."""
    replayed = replay(requests((0.0, 1_000, 9)), cost=_with_host(host), overlap=True)
    (line,) = replayed.record.timelines
    assert line.first_token_seconds == pytest.approx(first)
    gaps = [
        value
        for value, count in zip(
            replayed.record.gaps.values, replayed.record.gaps.counts, strict=True
        )
        for _ in range(count)
    ]
    assert gaps[1:] == pytest.approx([gap] * 7)
    assert line.tokens == 9


@pytest.mark.parametrize(
    ("chunk_size", "mixed", "overlap"),
    matrix([None, 64, 2_048], [False, True], [False, True], others=pytest.mark.full),
)
def test_every_answer_has_the_length_that_the_trace_says(
    chunk_size: int | None, mixed: bool, overlap: bool
) -> None:
    how = settings(chunk_size=chunk_size, mixed=mixed)
    replayed = replay(synthesise(PRESSED, 1), how, overlap=overlap)
    for line in replayed.record.timelines:
        assert line.error is None
        assert line.tokens == line.request.output_tokens


@pytest.mark.parametrize("overlap", [False, True])
def test_a_retracted_answer_is_not_longer_and_not_shorter(overlap: bool) -> None:
    trace = requests(*[(0.0, 50, 300)] * 40)
    how = settings(pool_tokens=3_000, conservativeness=0.01)
    replayed = replay(trace, how, max_tokens=300, overlap=overlap)
    assert replayed.status.retractions > 10
    assert [line.tokens for line in replayed.record.timelines] == [300] * 40


def test_the_same_run_twice() -> None:
    trace, how = synthesise(replace(PRESSED, requests=25), 2), settings(pool_tokens=3_000)
    one, other = (replay(trace, how, max_tokens=300).record for _ in range(2))
    assert one.timelines == other.timelines
    assert one.gaps == other.gaps


def test_the_prefix_cache_finds_what_the_trace_shares() -> None:
    blocks = tuple(range(8))
    trace = trace_of(
        "t",
        [
            TraceRequest(0.0, 8 * 512, 2, blocks),
            TraceRequest(1.0, 8 * 512 + 100, 2, (*blocks, 90)),
            TraceRequest(2.0, 8 * 512, 2, (*blocks[:3], 91, 92, 93, 94, 95)),
        ],
    )
    lines = replay(trace).record.timelines
    assert [line.cached_tokens for line in lines] == [0, 8 * 512, 3 * 512]
    off = replay(trace, settings(prefix_cache=False)).record.timelines
    assert [line.cached_tokens for line in off] == [0, 0, 0]


def test_a_prompt_that_can_never_run_is_counted_as_failed() -> None:
    replayed = replay(requests((0.0, 300_000, 1), (0.0, 10, 2)), SETTINGS)
    summary = summarise(replayed.record, replayed.status)
    assert (summary.finished, summary.failed) == (1, 1)
    assert "context length" in str(summary.first_error)
    assert "1 of 2 requests failed; the first: the prompt has 300000 tokens" in failures(summary)


def test_a_summary_adds_up() -> None:
    trace = synthesise(PRESSED, 3)
    replayed = replay(trace)
    summary = summarise(replayed.record, replayed.status)
    assert summary.finished == len(trace.requests)
    assert summary.output_tokens == trace.output_tokens
    assert summary.itl.count == trace.output_tokens - len(trace.requests)
    assert summary.busy_seconds <= summary.seconds
    assert 0 < summary.usage_mean <= summary.usage_peak <= 1
    assert summary.output_rate == pytest.approx(trace.output_tokens / summary.seconds)


def test_a_static_batch_is_filled_once() -> None:
    trace = requests((0.0, 100, 50), (0.0, 100, 2), (0.01, 100, 2), (0.02, 100, 2))
    how = settings(max_running_requests=2)
    first, short, *later = replay(trace, how, static=True).record.timelines
    assert short.finished_seconds is not None
    assert first.finished_seconds is not None
    assert short.finished_seconds < first.finished_seconds
    assert [line.started_seconds for line in later] == [first.finished_seconds] * 2
    continuous = replay(trace, how).record.timelines
    assert continuous[2].started_seconds == pytest.approx(short.finished_seconds)
