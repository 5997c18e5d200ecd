"""A service's autoscaling settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sluice_contract.cluster.labels import Role


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of one pool."""

    minimum: int
    maximum: int
    gpus: int = 0
    """GPUs of one engine."""


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Settings of one service; `pools` are the scaled pools."""

    pools: Mapping[Role, PoolLimits]
    gpu_budget: int | None = None
    """GPUs that all pods of the service may hold; None: as many as there are."""
    queue_seconds: float | None = None
    """Seconds of work that may wait in each engine that computes prompts; None: as many as
    `ttft_seconds` leaves."""
    prefill_queue: int | None = None
    """Requests that may wait for their prompt in each engine that computes prompts."""
    decode_queue: int | None = None
    """Requests that may wait in each engine of a decode pool: for pages, or with computed pages
    that are not read yet. A mixed pool has no such queue."""
    kv_used: float = 0.8
    """Share of its pages that the requests of an engine may hold."""
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    percentile: float = 95.0
    """Percentage of the requests that are to keep `ttft_seconds` and `itl_seconds`."""
    idle_seconds: float = 300.0
    """Seconds without work after which a service goes to zero."""
    on_metrics_loss: Literal["Hold", "Floor"] = "Hold"
    engines_move: bool = False
    """Whether engines of both pools differ only in their role, so that they can move between
    pools."""

    @property
    def allowed_queue_seconds(self) -> float:
        """Allowed time in the queue. By default half of the TTFT promise: the rest is for the
        prompt itself."""
        if self.queue_seconds is not None:
            return self.queue_seconds
        return 1.0 if self.ttft_seconds is None else self.ttft_seconds / 2
