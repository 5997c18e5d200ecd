"""Policies that look at nothing: a number, and a plan that was made before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice_autoscaler.sample import Sample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.policies.policy import Targets


@dataclass(frozen=True, slots=True)
class Static:
    """The same number always."""

    replicas: Mapping[Role, int]
    interval_seconds: float = 60.0

    def targets(self, sample: Sample) -> Targets:
        return Targets(self.replicas, reason="Static")


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers from moments on, in order of time."""

    role: Role
    moments: Sequence[float]
    replicas: Sequence[int]
    interval_seconds: float = 2.0

    def targets(self, sample: Sample) -> Targets:
        index = max(0, bisect_right(self.moments, sample.time_seconds) - 1)
        return Targets({self.role: self.replicas[index]}, reason="Planned")
