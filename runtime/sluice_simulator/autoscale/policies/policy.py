"""What a policy is: from a sample to engines for each pool. And the two that only read its time: a
constant, and a plan made in advance."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar, Protocol

from sluice_autoscaler.decision import Move
from sluice_autoscaler.sample import Sample
from sluice_contract.cluster.labels import Role


@dataclass(frozen=True, slots=True)
class Targets:
    """Engines of each pool, and which go first where a pool shrinks."""

    replicas: Mapping[Role, int]
    victims: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    move: Move | None = None
    """Engines that go from one pool to the other, and are not started anew."""


class Policy(Protocol):
    """Created for each replay."""

    @property
    def interval_seconds(self) -> float:
        """Seconds between two decisions."""

    @property
    def reads_reports(self) -> bool:
        """Whether a decision depends on load reports: they are not taken where none does."""

    def targets(self, sample: Sample) -> Targets:
        """Engines for each pool now."""


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same number of engines."""

    replicas: Mapping[Role, int]
    interval_seconds: float = 60.0
    reads_reports: ClassVar[bool] = False

    def targets(self, sample: Sample) -> Targets:
        return Targets(self.replicas, reason="Static")


Steps = Sequence[tuple[float, int]]
"""Engines from each of the ascending seconds on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """For each pool what was decided before; the first number of engines holds from the begin."""

    steps: Mapping[Role, Steps]
    interval_seconds: float = 2.0
    reads_reports: ClassVar[bool] = False

    def targets(self, sample: Sample) -> Targets:
        now = sample.time_seconds
        return Targets({role: self.engines(role, now) for role in self.steps}, reason="Planned")

    def engines(self, role: Role, seconds: float) -> int:
        """Of a pool at that moment."""
        steps = self.steps[role]
        return steps[max(0, bisect_right(steps, seconds, key=itemgetter(0)) - 1)][1]
