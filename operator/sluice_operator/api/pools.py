"""The pools of an InferenceService: how many engines, and on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from pydantic import Field
from sluice_contract.cluster.labels import Role

from sluice_operator.api.base import (
    ApiModel,
    DnsName,
    LabelKey,
    LabelValue,
    ResourceName,
    Resources,
    Rule,
    left_out,
)
from sluice_operator.api.engine import EngineSpec, PrefillEngineSpec
from sluice_operator.api.template import PodTemplate

GPU_RESOURCE: Final = "nvidia.com/gpu"
MAX_REPLICAS: Final = 1000
"""Most engines of a pool."""


class AcceleratorSpec(ApiModel):
    """The GPUs of one engine. Left out altogether, the engine runs on CPUs."""

    product: LabelValue | None = Field(
        default=None,
        min_length=1,
        description="Product as a node label spells it, e.g. NVIDIA-A100-SXM4-40GB; the pods are "
        "then bound to such nodes. Left out: any.",
    )
    product_label: LabelKey | None = Field(
        default=None,
        json_schema_extra=left_out("nvidia.com/gpu.product; amd.com/gpu.product-name for amd.com"),
        description="Node label of product, e.g. cloud.google.com/gke-accelerator.",
    )
    count: int | None = Field(
        default=None,
        ge=1,
        le=64,
        json_schema_extra=left_out(1),
        description="GPUs of one engine.",
    )
    resource_name: ResourceName | None = Field(
        default=None,
        json_schema_extra=left_out(GPU_RESOURCE),
        description="Resource of the GPUs, as their device plugin calls it, e.g. amd.com/gpu.",
    )
    claim_template: DnsName | None = Field(
        default=None,
        description="ResourceClaimTemplate; each engine gets a claim made from it, with count "
        "devices, in place of the resource.",
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.resourceName) || !(self.resourceName.contains('kubernetes.io/') || "
            "self.resourceName.startsWith('requests.'))",
            lambda s: (
                s.resource_name is None
                or not (
                    "kubernetes.io/" in s.resource_name or s.resource_name.startswith("requests.")
                )
            ),
            "an extended resource, not one of kubernetes.io",
            "resourceName",
        ),
        Rule(
            "!has(self.productLabel) || has(self.product)",
            lambda s: s.product_label is None or s.product is not None,
            "only beside product",
            "productLabel",
        ),
        Rule(
            "!has(self.claimTemplate) || has(self.count) && !has(self.resourceName)",
            lambda s: s.claim_template is None or (s.count is not None and s.resource_name is None),
            "only beside count, the devices of a claim, and without resourceName",
            "claimTemplate",
        ),
    )


def gpu_count(accelerator: AcceleratorSpec | None) -> int:
    """GPUs of one engine; 0 on CPUs."""
    return 0 if accelerator is None else accelerator.count or 1


class PoolAutoscaling(ApiModel):
    """Limits of the replicas of a pool."""

    min_replicas: int = Field(
        ge=0, le=MAX_REPLICAS, description="Fewest replicas; 0 scales to zero."
    )
    max_replicas: int = Field(ge=1, le=MAX_REPLICAS, description="Most replicas.")

    RULES: ClassVar = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
            "at most maxReplicas",
            "minReplicas",
        ),
    )


def numbers_rule(scaling: str, cel: str, holds: Callable[[Any], bool]) -> Rule:
    """The rule that the number of engines is either fixed or between two limits."""
    return Rule(
        f"!has(self.replicas) || {cel}",
        lambda s: s.replicas is None or holds(s),
        f"replicas, or minReplicas and maxReplicas of {scaling}, not both",
        "replicas",
    )


class PrefillSpec(ApiModel):
    """The pool that computes prompts. Sections left out here are those of the top level."""

    replicas: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REPLICAS,
        json_schema_extra=left_out(
            "1 beside spec.replicas; with autoscaling between the same numbers as the other pool; "
            "chosen, with gpuBudget and no number"
        ),
        description="Number of engines. Not together with autoscaling.",
    )
    autoscaling: PoolAutoscaling | None = Field(
        default=None, description="Lets the number of engines follow the load."
    )
    accelerator: AcceleratorSpec | None = Field(
        default=None, description="GPUs of one engine. Left out: spec.accelerator."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of one engine. Left out: spec.resources."
    )
    template: PodTemplate | None = Field(
        default=None, description="Additions to the pods. Left out: spec.template."
    )
    engine: PrefillEngineSpec | None = Field(
        default=None,
        description="Settings of these engines alone; each overrides that of spec.engine.",
    )

    RULES: ClassVar = (
        numbers_rule("autoscaling", "!has(self.autoscaling)", lambda s: s.autoscaling is None),
        Rule(
            "!has(self.engine) || !has(self.engine.kvTransfer)",
            lambda s: s.engine is None or s.engine.kv_transfer is None,
            "only in spec.engine, where it counts for both pools",
            "engine.kvTransfer",
        ),
    )


def section_of(role: str) -> str:
    """The section of an InferenceService that is about the engines of a role alone."""
    return "spec.prefill" if role == Role.PREFILL else "spec"


def replicas_path(spec: Mapping[str, Any], role: str) -> str:
    """The field that sets the number of engines of a role, in a stored `spec`. `spec.replicas`
    stops both pools if it is 0. A scaled pool starts with its minReplicas."""
    if spec.get("replicas") == 0:
        return "spec.replicas"
    section = section_of(role)
    parts = [(section, spec.get("prefill") or {}), ("spec", spec)]
    for path, part in parts if role == Role.PREFILL else parts[1:]:
        if path == section and part.get("replicas") is not None:
            break
        if (part.get("autoscaling") or {}).get("minReplicas") is not None:
            return f"{path}.autoscaling.minReplicas"
    return f"{section}.replicas"


@dataclass(frozen=True)
class Pool:
    """One pool of engines, with what it inherits."""

    replicas: int | None = None
    autoscaling: PoolAutoscaling | None = None
    accelerator: AcceleratorSpec | None = None
    resources: Resources | None = None
    template: PodTemplate | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)
    accelerator_section: str = "spec"
    """The section of an InferenceService that has the accelerator."""

    @property
    def engines(self) -> int:
        """The number of engines that the spec asks for; of a scaled pool, the number that it starts
        with."""
        if self.replicas is not None:
            return self.replicas
        return self.autoscaling.min_replicas if self.autoscaling else 1
