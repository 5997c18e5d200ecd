"""The pools of an InferenceService: how many engines, and on what."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from sluice_operator.api.base import (
    CRD_DEFAULT,
    ApiModel,
    LabelValue,
    Resources,
    Rule,
    left_out,
)
from sluice_operator.api.template import PodTemplate


class AcceleratorSpec(ApiModel):
    """The GPUs of one engine. Left out altogether, the engine runs on CPUs."""

    product: LabelValue | None = Field(
        default=None,
        min_length=1,
        description="Product as the node label nvidia.com/gpu.product spells it, e.g. "
        "NVIDIA-A100-SXM4-40GB; the pods are then bound to such nodes. Left out: whatever the "
        "nodes have.",
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=64,
        json_schema_extra=left_out(1),
        description="GPUs of one engine (nvidia.com/gpu).",
    )


class PoolAutoscaling(ApiModel):
    """Between how many replicas a pool may move."""

    min_replicas: int = Field(ge=0, le=1000, description="Fewest replicas; 0 scales to zero.")
    max_replicas: int = Field(ge=1, le=1000, description="Most replicas.")

    RULES: ClassVar = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
            "at most maxReplicas",
            "minReplicas",
        ),
    )


class PoolSpec(ApiModel):
    """One pool of equal engines."""

    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        json_schema_extra=CRD_DEFAULT,
        description="Number of engines. With autoscaling, the number to start from.",
    )
    autoscaling: PoolAutoscaling | None = Field(
        default=None, description="Lets the number of engines follow the load."
    )
    accelerator: AcceleratorSpec | None = Field(
        default=None, description="GPUs of one engine; without it the engine runs on CPUs."
    )
    resources: Resources | None = Field(
        default=None,
        description="CPU and memory of one engine's container. Without a memory limit each engine "
        "sizes its KV pool from the memory of its whole node.",
    )
    template: PodTemplate | None = Field(default=None, description="Additions to the pool's pods.")

    RULES: ClassVar = (
        # On updates, which only the API server sees: `kubectl scale` would do nothing in silence.
        Rule(
            "!has(self.autoscaling) || !has(oldSelf.autoscaling) || "
            "self.replicas == oldSelf.replicas",
            lambda _: True,
            "no change while the pool scales by itself; change autoscaling.minReplicas",
            "replicas",
        ),
    )


class Pools(ApiModel):
    """The pools of a service: mixed alone, or prefill and decode."""

    mixed: PoolSpec | None = Field(
        default=None, description="Engines that do both phases. Only in mode Mixed."
    )
    prefill: PoolSpec | None = Field(
        default=None, description="Engines that compute prompts. Only in mode Disaggregated."
    )
    decode: PoolSpec | None = Field(
        default=None, description="Engines that generate tokens. Only in mode Disaggregated."
    )
