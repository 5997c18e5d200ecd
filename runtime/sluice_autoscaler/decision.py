"""What was decided, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice_contract.labels import Role


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """One pool."""

    role: Role
    current: int
    desired: int
    reason: str
    """One word in CamelCase."""
    message: str
    """For people: what was seen, in numbers, and what follows."""
    victims: tuple[str, ...] = ()
    """Engines that had best go first when the pool shrinks."""


@dataclass(frozen=True, slots=True)
class Decision:
    """All scaled pools at one moment."""

    pools: Mapping[Role, PoolDecision]
    reason: str
    message: str

    @property
    def changes(self) -> tuple[PoolDecision, ...]:
        """The pools that are to have another number of engines."""
        return tuple(pool for pool in self.pools.values() if pool.desired != pool.current)
