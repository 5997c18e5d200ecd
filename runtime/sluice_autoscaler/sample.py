"""A service at one moment, as the autoscaler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineCondition, EngineFigures, SloCounts

IDLE: Final = EngineFigures()


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine by its last load report."""

    name: str
    role: Role
    epoch: str
    condition: EngineCondition
    age_seconds: float
    """Age of the report at the moment of the sample."""
    revision: str | None = None
    max_running_requests: int = 0
    figures: EngineFigures = IDLE
    slo: SloCounts | None = None


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool, of all revisions."""

    role: Role
    replicas: int
    """Number of engines requested for the pool."""
    ready: int
    starting: int = 0
    """Pods that have a place and are not ready yet."""
    unschedulable: int = 0
    """Pods without a place."""
    surplus: int = 0
    """Pods beyond `replicas` that still hold their GPUs: they drain, or a roll-out needs them."""
    moving: int = 0
    """Engines in `surplus` that move to the other pool, which counts them in its `replicas`
    already."""
    start_seconds: float | None = None
    """Median time from scheduled to ready, of current engines; None while unknown."""
    start_phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase of the start that took `start_seconds`, as far as known; see
    `sluice_contract.wire.start`."""
    start_pod: str = ""
    """Name of the pod whose start it is; empty while unknown."""
    queue: str = ""
    """Name of the queue that pods without a place wait for; empty: they wait for nodes."""
    queued: int = 0
    """How many of `unschedulable` wait for the queue; the others wait for nodes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A service at `time_seconds`, by a clock that never goes back."""

    time_seconds: float
    pools: Mapping[Role, PoolSample]
    engines: tuple[EngineSample, ...] | None
    """None: no router answered."""
    waiting_requests: int = 0
    """Requests that routers hold because no engine is usable."""
    unreported: int = 0
    """Ready engines, of any pool, of which no router has a load report."""
