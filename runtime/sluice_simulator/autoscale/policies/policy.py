"""What a policy is: it sees what is live, and says how many engines each pool is to have."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Made anew for each replay."""

    @property
    def interval_seconds(self) -> float:
        """Between two decisions."""

    def targets(self, sample: Sample) -> Targets:
        """What is wanted now."""
