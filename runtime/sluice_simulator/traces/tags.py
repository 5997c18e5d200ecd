"""Adds tenants and urgency, which no public trace has, to a trace. They are drawn from a seed, for
comparing policies that use them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from sluice_simulator.traces.request import Trace

URGENT: Final = 100
"""Priority of an urgent request; all others have 0."""


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
