"""What was decided, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.measured import Measured


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """One pool."""

    role: Role
    current: int
    desired: int
    reason: str
    """One word in CamelCase."""
    message: str
    """For people: measurements in numbers, and what follows."""
    victims: tuple[str, ...] = ()
    """Engines that should go first when the pool shrinks."""
    wanted: int | None = None
    """What the load alone asks for; None where it is not known. `desired` follows it within limits,
    budget and rates."""
    measured: Measured = field(default=Measured(), compare=False)
    """What later decisions learn from."""


@dataclass(frozen=True, slots=True)
class Move:
    """Engines that one pool gives to the other, and that take its role without a new start."""

    source: Role
    target: Role
    engines: int
    target_engines: int
    """Of the pool that they move to, afterwards."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests that engines with an slo counted: answers that ended, and requests that are late."""

    requests: int = 0
    in_time: int = 0
    """Those that kept it."""

    @property
    def in_time_percent(self) -> float | None:
        """Rounded down to a tenth; None without requests."""
        return 1000 * self.in_time // self.requests / 10 if self.requests else None


@dataclass(frozen=True, slots=True)
class Decision:
    """All scaled pools at one moment."""

    pools: Mapping[Role, PoolDecision]
    reason: str
    message: str
    answered: Answered = field(default=Answered(), compare=False)
    """Counts of all engines of the service since the sample before; for people."""
    move: Move | None = None
    """Of the engines by which pools change, those that move; None: none does."""

    @property
    def changes(self) -> tuple[PoolDecision, ...]:
        """The pools that are to have another number of engines."""
        return tuple(pool for pool in self.pools.values() if pool.desired != pool.current)


def engines(count: int, verb: tuple[str, str] | None = None) -> str:
    """`1 engine`, `3 engines`; `verb`: of one, and of several."""
    counted = f"{count} engine" if count == 1 else f"{count} engines"
    return counted if verb is None else f"{counted} {verb[0] if count == 1 else verb[1]}"
