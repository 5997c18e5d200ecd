"""Traces and fleets of the tests: small, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from sluice_autoscaler.sample import Sample
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.policies.policy import Targets
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of


def chats(seconds: float = 600.0, rate: float = 3.0, seed: int = 0) -> Trace:
    """Poisson arrivals, whose rate triples in the third quarter."""
    draw, now, requests = random.Random(seed), 0.0, []
    while now < seconds:
        busy = 0.5 <= now / seconds < 0.75
        now += draw.expovariate(3 * rate if busy else rate)
        prompt, output = draw.randint(200, 2500), draw.randint(1, 400)
        requests.append(TraceRequest(now, prompt, output))
    return trace_of(f"chats-{seed}", requests)


class Recording:
    """A policy that remembers what it saw. `targets_at`: targets by the number of samples."""

    reads_reports = True

    def __init__(
        self, targets_at: Callable[[int], Targets], interval_seconds: float = 10.0
    ) -> None:
        self.interval_seconds = interval_seconds
        self._targets_at = targets_at
        self.samples: list[Sample] = []

    def targets(self, sample: Sample) -> Targets:
        self.samples.append(sample)
        return self._targets_at(len(self.samples))


def erratic(roles: list[Role], seed: int, most: int) -> Recording:
    """Wants anything at any time."""
    draw = random.Random(seed)
    return Recording(lambda _: Targets({role: draw.randint(1, most) for role in roles}), 7.0)
