"""A promised time to the first token, with and without the policy that orders by it."""

from __future__ import annotations

import random
from typing import Final

import pytest
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

from tests.simulator.simulating import replay, settings

TTFT_SECONDS: Final = 1.0


def bursts(rate: float) -> Trace:
    """Prompts of unlike lengths that come faster than they can be computed (100,000 tokens a
    second), for as long as it takes a queue to pass the promise."""
    draw, now, found = random.Random(7), 0.0, list[TraceRequest]()
    for _ in range(250):
        prompt = draw.choice([200, 400, 800, 16_000])
        found.append(TraceRequest(now, prompt, 4))
        now += draw.expovariate(rate)
    return trace_of("bursts", found)


def attainment(trace: Trace, policy: str, ttft: float | None) -> float:
    """Share of all requests whose first token was in time; none is refused."""
    how = settings(policy=policy, ttft_seconds=ttft, chunk_size=8_192)
    lines = replay(trace, how).record.timelines
    assert all(line.error is None and line.tokens for line in lines)
    first = ((line.first_token_seconds or 0.0) - line.request.arrival_seconds for line in lines)
    return sum(seconds <= TTFT_SECONDS for seconds in first) / len(lines)


@pytest.mark.parametrize(("rate", "gain"), [(10, 0.0), (30, 0.1)])
def test_more_first_tokens_are_in_time_under_overload_and_as_many_without(
    rate: float, gain: float
) -> None:
    trace = bursts(rate)
    without, slack = attainment(trace, "fcfs", None), attainment(trace, "slack", TTFT_SECONDS)
    assert slack >= without + gain
    if not gain:
        assert slack > 0.95
