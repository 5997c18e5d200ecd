"""What a policy is: from a sample to engines for each pool. And the two that ignore the sample: a
constant, and a plan made in advance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice_autoscaler.sample import Sample
from sluice_contract.cluster.labels import Role


@dataclass(frozen=True, slots=True)
class Targets:
    """Engines of each pool, and which go first where a pool shrinks."""

    replicas: Mapping[Role, int]
    victims: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""


class Policy(Protocol):
    """Created for each replay."""

    @property
    def interval_seconds(self) -> float:
        """Seconds between two decisions."""

    def targets(self, sample: Sample) -> Targets:
        """Engines for each pool now."""


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same number of engines."""

    replicas: Mapping[Role, int]
    interval_seconds: float = 60.0

    def targets(self, sample: Sample) -> Targets:
        return Targets(self.replicas, reason="Static")


@dataclass(frozen=True, slots=True)
class Plan:
    """`replicas[i]` from `moments[i]` on; moments ascend."""

    role: Role
    moments: Sequence[float]
    replicas: Sequence[int]
    interval_seconds: float = 2.0

    def targets(self, sample: Sample) -> Targets:
        index = max(0, bisect_right(self.moments, sample.time_seconds) - 1)
        return Targets({self.role: self.replicas[index]}, reason="Planned")
