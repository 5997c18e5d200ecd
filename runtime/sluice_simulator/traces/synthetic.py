"""Makes traces from a seed: the workloads of the documentation's ready-made configurations, and
others.

Arrivals are a Poisson process, lengths come from a range, prefixes from a pool. A seed always gives
one trace.
Tenants and urgency, which no public trace has, are drawn for a trace of any origin.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_simulator.traces.request import BLOCK_TOKENS, Trace, TraceRequest, trace_of

URGENT: Final = 100
"""Priority of an urgent request; all others have 0."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters from which a synthetic trace is drawn; ranges include both ends."""

    name: str
    requests: int
    rate: float | None
    """Requests per second; None: all arrive at once."""
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    prefixes: int = 0
    """Number of shared prefixes to choose from; 0: prompts share nothing."""
    prefix_blocks: int = 0
    """Length of a shared prefix, in blocks of 512 tokens."""


def synthesise(workload: Workload, seed: int) -> Trace:
    """A trace of `workload.requests` requests."""
    draw = random.Random(seed)  # noqa: S311
    now, requests = 0.0, []
    for index in range(workload.requests):
        requests.append(_request(workload, draw, now, index))
        now += draw.expovariate(workload.rate) if workload.rate else 0.0
    return trace_of(f"{workload.name}-{seed}", requests)


def _request(workload: Workload, draw: random.Random, now: float, index: int) -> TraceRequest:
    prompt = draw.randint(*workload.prompt_tokens)
    output = draw.randint(*workload.output_tokens)
    if not workload.prefixes:
        return TraceRequest(now, prompt, output)
    prefix = draw.randrange(workload.prefixes) * workload.prefix_blocks
    shared = [prefix + number for number in range(workload.prefix_blocks)]
    tokens = prompt + len(shared) * BLOCK_TOKENS
    own_blocks = -(-prompt // BLOCK_TOKENS)
    first_own = (workload.prefixes + index) * 1_000
    own = [workload.prefixes * workload.prefix_blocks + first_own + n for n in range(own_blocks)]
    return TraceRequest(now, tokens, output, (*shared, *own))


def tagged(trace: Trace, tenants: int, urgent_share: float, seed: int) -> Trace:
    """The trace with requests of `tenants` tenants: the n-th tenant has 1/n as many as the first,
    as in Zipf's law. `urgent_share`: fraction of requests that are urgent. Without tenants and
    urgency the trace is unchanged."""
    draw = random.Random(seed)  # noqa: S311
    names = [f"tenant-{number}" for number in range(tenants)] or [""]
    weights = [1 / (number + 1) for number in range(len(names))]
    tenant_of = draw.choices(names, weights, k=len(trace.requests))
    requests = [
        replace(
            request,
            routing_key=tenant,
            priority=URGENT if draw.random() < urgent_share else 0,
        )
        for request, tenant in zip(trace.requests, tenant_of, strict=True)
    ]
    return Trace(trace.name, tuple(requests))


WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        Workload("chatbot", 2_000, 20.0, (50, 800), (20, 400), prefixes=4, prefix_blocks=1),
        Workload("rag", 500, 4.0, (1_500, 2_500), (50, 300), prefixes=50, prefix_blocks=4),
        Workload("documents", 1_500, 9.0, (100, 400), (50, 300), prefixes=200, prefix_blocks=16),
        Workload("offline", 1_000, None, (100, 1_024), (100, 1_024)),
        Workload("long-beside-short", 600, 8.0, (50, 20_000), (20, 400)),
    )
}
"""Named workloads of the command line."""
