"""Decisions and their reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.measured import Measured


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """Decision about one pool."""

    role: Role
    current: int
    desired: int
    reason: str
    """One word in CamelCase."""
    message: str
    """Message for people: the measurements in numbers, and what follows from them."""
    victims: tuple[str, ...] = ()
    """Engines that should go first when the pool shrinks."""
    wanted: int | None = None
    """Engines that the load alone requires; None if the load is unknown. `desired` follows this
    number within limits, budget and rates."""
    measured: Measured = field(default=Measured(), compare=False)
    """Measurements that later decisions learn from."""


@dataclass(frozen=True, slots=True)
class Move:
    """Engines that one pool gives to another, and that take its role without a restart."""

    source: Role
    target: Role
    engines: int
    target_engines: int
    """Engines of the target pool after the move."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Requests that engines with an slo counted: answers that ended, and requests that are late."""

    requests: int = 0
    in_time: int = 0
    """Requests that kept the slo."""

    @property
    def in_time_percent(self) -> float | None:
        """Percentage of requests in time, rounded down to a tenth; None without requests."""
        return 1000 * self.in_time // self.requests / 10 if self.requests else None


@dataclass(frozen=True, slots=True)
class Margin:
    """Margin by which a service is sized, and the counts that it is learnt from; see `margin`."""

    factor: float = 1.0
    """Factor by which arriving work counts."""
    minutes: int = 0
    """Minutes with load since the last one with far too many late requests."""
    requests: int = 0
    late: int = 0
    """Requests counted in these minutes, and those of them that broke the slo."""
    minute_began_seconds: float = -math.inf
    """Begin of the present minute, by the samples' clock."""
    minute_requests: int = 0
    minute_late: int = 0
    minute_is_clear: bool = True
    """Whether the minute's counts are those of the load and the pools' size."""


@dataclass(frozen=True, slots=True)
class Decision:
    """All scaled pools at one moment."""

    pools: Mapping[Role, PoolDecision]
    reason: str
    message: str
    answered: Answered = field(default=Answered(), compare=False)
    """Requests since the previous sample, counted by all engines of the service; for people."""
    margin: Margin = field(default=Margin(), compare=False)
    """Margin for the next decision."""
    move: Move | None = None
    """Engines that move between pools, included in `changes`; None: no engine moves."""

    @property
    def changes(self) -> tuple[PoolDecision, ...]:
        """Decisions that change the pool's number of engines."""
        return tuple(pool for pool in self.pools.values() if pool.desired != pool.current)


def engines(count: int, verb: tuple[str, str] | None = None) -> str:
    """Text such as `1 engine` or `3 engines`. `verb`: appended verb in singular and plural."""
    counted = f"{count} engine" if count == 1 else f"{count} engines"
    return counted if verb is None else f"{counted} {verb[0] if count == 1 else verb[1]}"
