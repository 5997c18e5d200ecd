"""What the autoscaler sees of a service at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineCondition


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine by its last load report. Totals count since `epoch` began; None: not reported."""

    name: str
    role: Role
    epoch: str
    condition: EngineCondition
    age_seconds: float
    """Of the report, at the moment of the sample."""
    revision: str | None = None
    queued_requests: int = 0
    queued_tokens: int = 0
    """Prompt tokens that are not computed yet."""
    queued_work_seconds: float = 0.0
    """To compute them, at the engine's own rate; 0 when that is unknown."""
    running_requests: int = 0
    max_running_requests: int = 0
    kv_used: float = 0.0
    """Share of the pages that requests hold."""
    bootstrap_requests: int = 0
    inflight_requests: int = 0
    prealloc_requests: int = 0
    transfer_requests: int = 0
    prefill_tokens_per_second: float | None = None
    """At which prompts are computed while some are, beside what decodes."""
    marginal_prefill_tokens_per_second: float | None = None
    """The inverse of what a prompt token adds to a step that decodes anyway."""
    itl_seconds: float | None = None
    """Recent time between two steps that gave an answer tokens."""
    prompt_tokens_total: int | None = None
    """Tokens of the prompts that were received, without those of the prefix cache."""
    generated_tokens_total: int | None = None
    finished_requests_total: int | None = None
    slo_requests_total: int | None = None
    """Requests that ended, or whose first token is late, of an engine with an slo."""
    slo_in_time_total: int | None = None
    """Requests of `slo_requests_total` that kept the slo."""
    slo_late_requests: int | None = None
    """Requests that are late and have no first token yet; `slo_requests_total` has them."""


@dataclass(frozen=True, slots=True)
class PoolSample:
    """One pool, of all revisions."""

    role: Role
    replicas: int
    """Engines that it is asked for."""
    ready: int
    starting: int = 0
    """Pods that have a place and are not ready yet."""
    unschedulable: int = 0
    """Pods without a place."""
    surplus: int = 0
    """Pods beyond `replicas` that still hold their GPUs: they drain, or a roll-out needs them."""
    moving: int = 0
    """Of `surplus`: engines that move to the other pool, where they are asked for already."""
    start_seconds: float | None = None
    """Of an engine, from its place to ready, as those that are ready took; None: not known."""
    queue: str = ""
    """Name of the queue that pods without a place wait for; empty: they wait for nodes."""
    queued: int = 0
    """How many of `unschedulable` wait for it; the others wait for nodes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A service at `time_seconds`, by a clock that never goes back."""

    time_seconds: float
    pools: Mapping[Role, PoolSample]
    engines: tuple[EngineSample, ...] | None
    """None: no router answered."""
    waiting_requests: int = 0
    """Held by routers, as no engine is usable."""
