"""Long inputs at full size, which no machine of this project could hold for real."""

from __future__ import annotations

import math

import pytest
from sluice_runtime.scheduler.settings import StepTarget
from sluice_simulator.costs import cost_named

from tests.simulator.simulating import replay, requests, settings


@pytest.mark.parametrize(
    ("prompt_tokens", "chunk_size", "chunks"), [(150_000, 2_048, 74), (50_000, 4_096, 13)]
)
def test_a_long_prompt_is_computed_in_as_many_chunks_as_it_must(
    prompt_tokens: int, chunk_size: int, chunks: int
) -> None:
    status = replay(requests((0.0, prompt_tokens, 1)), settings(chunk_size=chunk_size)).status
    assert status.steps["EXTEND"] == chunks
    assert status.chunk_cuts == chunks - 1


def test_a_long_prompt_holds_no_stream_up_and_cuts_no_short_prompt() -> None:
    """Streams of 20 requests, each step's gap; the short prompts came before the long one."""
    streams = [(0.1 * n, 500, 200) for n in range(20)]
    trace = requests(*streams, (2.0, 150_000, 1))
    whole = replay(trace, settings(chunk_size=None)).record
    chunked = replay(trace, settings(chunk_size=2_048))
    assert max(whole.gaps.values) > 1.5
    assert max(chunked.record.gaps.values) <= 0.01 + 2_048 * 1e-5 + 1e-9
    # Decode rows share the chunks, which become a few more; nothing else was ever cut.
    assert 74 <= chunked.status.chunk_cuts + 1 <= 76


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "hrrn"])
def test_short_prompts_that_come_during_a_long_one_hardly_wait(policy: str) -> None:
    """100,000 tokens; 20 others come in its first second, at the size and the speed of a GPU."""
    others = [(0.05 * (n + 1), 500, 100) for n in range(20)]
    trace = requests((0.0, 100_000, 1), *others)
    long: dict[int | None, float] = {}
    waits: dict[int | None, list[float]] = {}
    for chunk in (None, 2_048):
        how = settings(chunk_size=chunk, policy=policy)
        lines = replay(trace, how, cost=cost_named("h200-llama3-8b")).record.timelines
        firsts = [line.first_token_seconds or math.inf for line in lines]
        ttft = [at - line.request.arrival_seconds for at, line in zip(firsts, lines, strict=True)]
        long[chunk], waits[chunk] = ttft[0], sorted(ttft[1:])
    assert waits[None][10] > 30 * waits[2_048][10]
    assert waits[None][-1] > 30 * waits[2_048][-1]
    assert long[2_048] < 1.1 * long[None]


def test_with_a_target_prompts_of_a_thousand_tokens_are_computed_beside_a_long_one() -> None:
    """Late in the long prompt a chunk of it that keeps the target has 500 tokens; theirs are
    lighter."""
    streams = [(0.1 * n, 2_000, 400) for n in range(20)]
    others = [(3.5 + 0.3 * n, 1_000, 100) for n in range(18)]
    how = settings(chunk_size=8_192, target=StepTarget(0.05, 0.99, 1_024))
    trace = requests(*streams, (3.0, 120_000, 1), *others)
    record = replay(trace, how, cost=cost_named("h200-llama3-8b")).record
    long, *rest = record.timelines[20:]
    assert long.first_token_seconds
    assert long.first_token_seconds > 9
    for line in rest:
        assert line.first_token_seconds
        assert line.first_token_seconds - line.request.arrival_seconds < 0.15
    assert max(record.gaps.values) < 0.05 * 1.05


def test_a_long_prompt_is_at_most_doubled_by_others_that_never_stop_coming() -> None:
    others = [(0.02 * n, 500, 1) for n in range(1_500)]
    how = settings(max_running_requests=2_000)
    cost = cost_named("h200-llama3-8b")
    alone = replay(requests((0.0, 100_000, 1)), how, cost=cost).record.timelines[0]
    beside = replay(requests((0.0, 100_000, 1), *others), how, cost=cost).record.timelines[0]
    assert alone.first_token_seconds
    assert beside.first_token_seconds
    assert 1.3 < beside.first_token_seconds / alone.first_token_seconds < 2.0


def test_256_running_beside_a_chunk_of_256_starve_neither() -> None:
    streams = [(0.0, 16, 560)] * 256
    how = settings(chunk_size=256, max_running_requests=300)
    replayed = replay(requests(*streams, (5.0, 2_048, 5)), how)
    assert all(line.tokens > 5 for line in replayed.record.timelines[:-1])
    long = replayed.record.timelines[-1]
    assert long.started_seconds is not None
    assert long.first_token_seconds is not None
    step = 0.01 + (256 + 16) * 1e-5
    # Its share is one page a step, and no step goes by without it.
    assert long.started_seconds - 5.0 <= step
    assert long.first_token_seconds - long.started_seconds <= 2_048 / 16 * step + 1e-6
    # No stream ever misses a step.
    assert max(replayed.record.gaps.values) <= step + 1e-9
    assert replayed.status.chunk_cuts == 2_048 / 16 - 1
