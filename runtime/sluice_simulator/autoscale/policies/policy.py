"""Policies: functions from a sample to engines for each pool. Also the two that only read its time:
a constant, and a plan made in advance."""

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
    """Number of engines of each pool, and which go first where a pool shrinks."""

    replicas: Mapping[Role, int]
    victims: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    move: Move | None = None
    """Engines that move from one pool to the other, instead of new ones being started."""


class Policy(Protocol):
    """Decides about the number of engines; created for each replay."""

    @property
    def interval_seconds(self) -> float:
        """Seconds between two decisions."""

    @property
    def reads_reports(self) -> bool:
        """Whether decisions depend on load reports: otherwise these are not taken."""

    def targets(self, sample: Sample) -> Targets:
        """Engines for each pool now."""


@dataclass(frozen=True, slots=True)
class Static:
    """Policy with a constant number of engines."""

    replicas: Mapping[Role, int]
    interval_seconds: float = 60.0
    reads_reports: ClassVar[bool] = False

    def targets(self, sample: Sample) -> Targets:
        return Targets(self.replicas, reason="Static")


Steps = Sequence[tuple[float, int]]
"""Numbers of engines, each from a second on; the seconds ascend."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Policy with numbers planned for each pool in advance; the first one holds from the
    beginning."""

    steps: Mapping[Role, Steps]
    interval_seconds: float = 2.0
    reads_reports: ClassVar[bool] = False

    def targets(self, sample: Sample) -> Targets:
        now = sample.time_seconds
        return Targets({role: self.engines(role, now) for role in self.steps}, reason="Planned")

    def engines(self, role: Role, seconds: float) -> int:
        """Number of engines of a pool at that moment."""
        steps = self.steps[role]
        return steps[max(0, bisect_right(steps, seconds, key=itemgetter(0)) - 1)][1]
