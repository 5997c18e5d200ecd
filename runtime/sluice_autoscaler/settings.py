"""What a service wants of its autoscaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sluice_contract.labels import Role


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Between what a pool may move."""

    minimum: int
    maximum: int
    gpus: int = 0
    """Of one engine."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one service; `pools` are those that are scaled."""

    pools: Mapping[Role, PoolLimits]
    gpu_budget: int | None = None
    """GPUs that all pods of the service may hold; None: as many as there are."""
    queue_seconds: float = 1.0
    """Seconds of work that may wait in each engine that computes prompts."""
    prefill_queue: int | None = None
    """Requests that may wait for prefill in each engine."""
    decode_queue: int | None = None
    """Requests that may wait for decode in each engine."""
    kv_used: float = 0.8
    """Share of its pages that the requests of an engine may hold."""
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    on_metrics_loss: Literal["Hold", "Floor"] = "Hold"
