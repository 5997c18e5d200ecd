"""Traces and fleets of the tests: small, from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping

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


class Erratic:
    """Wants anything at any time, and remembers what it saw."""

    interval_seconds = 7.0
    reads_reports = True

    def __init__(self, roles: list[Role], seed: int, most: int) -> None:
        self._draw = random.Random(seed)
        self._roles = roles
        self._most = most
        self.samples: list[Sample] = []

    def targets(self, sample: Sample) -> Targets:
        self.samples.append(sample)
        wanted: Mapping[Role, int] = {
            role: self._draw.randint(1, self._most) for role in self._roles
        }
        return Targets(wanted)
