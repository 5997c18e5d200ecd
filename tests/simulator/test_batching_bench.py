"""The comparisons of `make bench-batching`, small enough for a test."""

from __future__ import annotations

import json

import pytest
from sluice_simulator.costs import cost_named

from benchmarks import batching
from benchmarks.batching_workloads import (
    CONTINUOUS,
    MIXED,
    STATIC,
    TARGET,
    Comparison,
    chats,
    chunks,
    long_prompt,
    padding,
)
from tests.simulator.simulating import requests

COST = cost_named(batching.GPU)
BASE = batching.settings_on(COST, 8_192)


def test_padding_is_what_a_static_batch_waits_for() -> None:
    trace = requests((0.0, 1, 10), (0.0, 1, 5), (0.0, 1, 5))
    assert padding(trace, 2) == pytest.approx(1 - 20 / 25)
    assert padding(trace, 1) == 0


def test_continuous_batching_is_three_times_static_for_many_unlike_answers() -> None:
    comparison = Comparison(
        chats(200, 50, None), {"max_running_requests": 16}, (STATIC, CONTINUOUS)
    )
    runs = batching.simulate(comparison, BASE, COST)
    assert runs["continuous"].output_rate > 3 * runs["static batches"].output_rate


def test_a_target_keeps_its_promise_and_costs_less_than_a_small_chunk() -> None:
    workload = long_prompt(40_000, 20, 2_048, 300)
    runs = batching.simulate(Comparison(workload, {}, (*chunks(512), TARGET)), BASE, COST)
    assert runs["chunk off"].itl.worst > 1.0
    assert runs["target 50 ms"].itl.p99 < 0.05
    assert runs["target 50 ms"].ttft.worst < runs["chunk 512"].ttft.worst


def test_without_mixed_batches_streams_stand_still_for_eight_chunks() -> None:
    workload = Comparison(long_prompt(40_000, 20, 2_048, 300), {"chunk_size": 2_048}, MIXED)
    runs = batching.simulate(workload, BASE, COST)
    assert 4 < runs["mixed off"].itl.worst / runs["mixed on"].itl.worst < 9


def test_a_row_and_a_line_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = Comparison(chats(20, 10, None), {"max_running_requests": 4}, (STATIC, CONTINUOUS))
    runs = batching.simulate(comparison, BASE, COST)
    batching.report("here", comparison, runs)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["variant"] for line in lines] == ["static batches", "continuous"]
    rows = batching.rows_of("here", comparison, runs)
    assert [len(row) for row in rows] == [len(batching.HEAD)] * 2
    assert rows[1][-1] == "0%"
