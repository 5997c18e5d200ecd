"""The result of knowing the trace: engines exist when they are needed, and not before.

A plan has two tuned parameters: the seconds over which the need is averaged, and the used share of
an engine. An engine is kept over a pause that is shorter than its start.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice_autoscaler.sample import Sample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.demand import smoothed
from sluice_simulator.autoscale.policies.policy import Targets


@dataclass(frozen=True, slots=True)
class Foresight:
    """Of one plan."""

    mean_seconds: int
    used: float
    """Share of an engine that is planned to be used."""


class Clairvoyant:
    """Engines for each second."""

    interval_seconds = 1.0

    def __init__(self, plans: Mapping[Role, Sequence[int]]) -> None:
        self._plans = plans

    def targets(self, sample: Sample) -> Targets:
        second = int(sample.time_seconds)
        return Targets(
            {role: plan[min(second, len(plan) - 1)] for role, plan in self._plans.items()},
            reason="Planned",
        )


def plan(needed: Sequence[float], foresight: Foresight, boot_seconds: float) -> list[int]:
    """Engines of each second, where `needed` are used fully."""
    mean = smoothed(needed, foresight.mean_seconds)
    engines = [max(1, math.ceil(need / foresight.used)) for need in mean]
    return _most_ahead(engines, math.ceil(boot_seconds) + 1)


def _most_ahead(values: Sequence[int], seconds: int) -> list[int]:
    """The most from each second to so many later."""
    best: deque[int] = deque()
    result = [0] * len(values)
    for at in range(len(values) - 1, -1, -1):
        while best and values[best[-1]] <= values[at]:
            best.pop()
        best.append(at)
        while best[0] > at + seconds:
            best.popleft()
        result[at] = values[best[0]]
    return result
