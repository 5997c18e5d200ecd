"""InferenceService: what a user asks for, field by field.

The whole v1alpha1 shape, including what `service/supported.py` still refuses.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal

from pydantic import Field
from sluice_contract.config import EngineSettings, ModelRef
from sluice_contract.labels import Role
from sluice_contract.sizing import GENERAL

from sluice_operator.api.base import (
    CRD_DEFAULT,
    ApiModel,
    Image,
    LabelValue,
    LocalRef,
    Resources,
    Rule,
    SecretKeyRef,
)
from sluice_operator.api.template import PodTemplate

MODEL_URI: Final = (
    "hf://[A-Za-z0-9][-._A-Za-z0-9]*/[A-Za-z0-9][-._A-Za-z0-9]*"
    "|pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?(/[^/:]+)*/?"
    "|oci://[^ ]+"
    "|file://(/[^/:]+)+/?"
    "|dummy://[A-Za-z0-9][-._A-Za-z0-9]*"
)
MAX_NAME: Final = 40
"""The longest derived name is NAME-prefill-<10 digits of a hash>, and must fit a DNS label."""
DRAIN_SECONDS: Final = 120
STARTUP_SECONDS: Final = 600
ROUTER_REPLICAS: Final = 2

_PAGE = GENERAL["page_size"]


class ModelSpec(ModelRef, ApiModel):
    """Which weights to serve, and under what name."""

    uri: str = Field(
        min_length=1,
        max_length=1024,
        description="Where the weights are: hf://org/name, pvc://claim/path (a volume of this "
        "namespace), oci://image, file:///path (in the engine's image or a mounted volume), or "
        "dummy://name for random weights.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Name of the model in the OpenAI API; the last part of the URI when left out.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Token for downloading, mounted as a file. Only with hf://."
    )

    RULES: ClassVar = (
        Rule(
            f"self.uri.matches('^({MODEL_URI})$')",
            lambda s: re.fullmatch(MODEL_URI, s.uri) is not None,
            "allowed: hf://org/name, pvc://claim/path, oci://image, file:///path, dummy://name",
            "uri",
        ),
        Rule(
            "!self.uri.contains('/../') && !self.uri.endsWith('/..')",
            lambda s: "/../" not in s.uri and not s.uri.endswith("/.."),
            "must not contain '..'",
            "uri",
        ),
        Rule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            lambda s: s.revision is None or s.uri.startswith("hf://"),
            "allowed only with an hf:// model",
            "revision",
        ),
        Rule(
            "!has(self.tokenSecretRef) || self.uri.startsWith('hf://')",
            lambda s: s.token_secret_ref is None or s.uri.startswith("hf://"),
            "allowed only with an hf:// model",
            "tokenSecretRef",
        ),
    )


class EngineSpec(EngineSettings, ApiModel):
    """Settings of the engines. All optional: what is left out is resolved, and shown in status."""

    image: Image | None = Field(
        default=None, description="Engine image; the one of the operator's release when left out."
    )
    drain_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="How long running streams may finish after SIGTERM, in seconds. Default: 120.",
    )
    startup_seconds: int | None = Field(
        default=None,
        ge=10,
        le=86_400,
        description="How long an engine may take until its model is loaded, in seconds. "
        "Default: 600.",
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.chunkSize) || self.chunkSize == -1 || self.chunkSize >= "
            f"(has(self.pageSize) ? self.pageSize : {_PAGE})",
            lambda s: s.chunk_size in (None, -1) or s.chunk_size >= (s.page_size or _PAGE),
            f"allowed: -1 (off) or at least pageSize ({_PAGE} when left out)",
            "chunkSize",
        ),
        Rule(
            "!has(self.minPrefillTokens) || !has(self.chunkSize) || self.chunkSize == -1 || "
            "self.minPrefillTokens <= self.chunkSize",
            lambda s: (
                s.min_prefill_tokens is None
                or s.chunk_size in (None, -1)
                or s.min_prefill_tokens <= s.chunk_size
            ),
            "must be at most chunkSize",
            "minPrefillTokens",
        ),
    )


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
        default=None, ge=1, le=64, description="GPUs of one engine (nvidia.com/gpu). Default: 1."
    )


class PoolAutoscaling(ApiModel):
    """Between how many replicas a pool may move."""

    min_replicas: int = Field(ge=0, le=1000, description="Fewest replicas; 0 scales to zero.")
    max_replicas: int = Field(ge=1, le=1000, description="Most replicas.")

    RULES: ClassVar = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            lambda s: s.min_replicas <= s.max_replicas,
            "must be at most maxReplicas",
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
        description="Number of engines. With autoscaling, the number to start from. Default: 1.",
    )
    autoscaling: PoolAutoscaling | None = Field(
        default=None, description="Lets the number of engines follow the load."
    )
    accelerator: AcceleratorSpec | None = Field(
        default=None, description="GPUs of one engine; without it the engine runs on CPUs."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of one engine's container."
    )
    template: PodTemplate | None = Field(default=None, description="Additions to the pool's pods.")


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


class Slo(ApiModel):
    """The latency promise that scheduling and scaling work towards."""

    ttft_milliseconds: int | None = Field(
        default=None, ge=1, le=3_600_000, description="Time to the first token, in milliseconds."
    )
    itl_milliseconds: int | None = Field(
        default=None, ge=1, le=3_600_000, description="Time between tokens, in milliseconds."
    )
    percentile: int = Field(
        default=95, ge=50, le=99, description="Share of requests that must keep it. Default: 95."
    )


class AutoscalingTarget(ApiModel):
    """What a pool should be loaded with at most."""

    queue_seconds: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Seconds of queued work in each engine.",
    )
    prefill_queue: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Requests that wait for prefill."
    )
    decode_queue: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Requests that wait for decode."
    )


class AutoscalingSpec(ApiModel):
    """How the pools with an autoscaling section move together."""

    gpu_budget: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="GPUs that the whole service may hold, pods that come or go included.",
    )
    target: AutoscalingTarget | None = Field(default=None, description="When to scale.")
    on_metrics_loss: Literal["Hold", "Floor"] = Field(
        default="Hold",
        description="Hold keeps the replicas when load reports are missing, Floor goes to "
        "minReplicas. Default: Hold.",
    )
    provider: Literal["Internal", "External"] = Field(
        default="Internal",
        description="Internal: the operator scales. External: a HorizontalPodAutoscaler or KEDA "
        "scales the EnginePools. Default: Internal.",
    )


class RolloutSpec(ApiModel):
    """How a new revision replaces the old one."""

    strategy: Literal["Surge", "InPlace"] = Field(
        default="Surge",
        description="Surge starts the new revision beside the old one. InPlace replaces pods "
        "where no room is left. Default: Surge.",
    )


class RouterAuth(ApiModel):
    """Who may send requests."""

    secret_ref: LocalRef = Field(description="Secret whose values are the accepted API keys.")


class RouterSpec(ApiModel):
    """The front door of the service."""

    replicas: int = Field(
        default=ROUTER_REPLICAS,
        ge=1,
        le=100,
        json_schema_extra=CRD_DEFAULT,
        description="Number of routers. Default: 2.",
    )
    image: Image | None = Field(
        default=None, description="Router image; the one of the operator's release when left out."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of one router's container."
    )
    auth: RouterAuth | None = Field(default=None, description="API keys.")


class InferenceServiceSpec(ApiModel):
    """A model and the fleet of engines that serves it."""

    model: ModelSpec = Field(description="Which weights to serve, and under what name.")
    mode: Literal["Mixed", "Disaggregated"] = Field(
        default="Mixed",
        json_schema_extra=CRD_DEFAULT,
        description="Mixed: every engine does prefill and decode. Disaggregated: a pool for each. "
        "Default: Mixed.",
    )
    slo: Slo | None = Field(
        default=None, description="The latency promise that scheduling and scaling work towards."
    )
    engine: EngineSpec | None = Field(
        default=None, description="Settings of the engines; each is resolved when left out."
    )
    pools: Pools | None = Field(
        default=None,
        description="The pools of engines. Left out in mode Mixed: one engine on CPUs.",
    )
    autoscaling: AutoscalingSpec | None = Field(
        default=None, description="How the pools with an autoscaling section move together."
    )
    rollout: RolloutSpec | None = Field(
        default=None, description="How a new revision replaces the old one."
    )
    router: RouterSpec | None = Field(default=None, description="The front door of the service.")
    paused: bool = Field(
        default=False,
        json_schema_extra=CRD_DEFAULT,
        description="True: the operator writes nothing but status. Default: false.",
    )

    RULES: ClassVar = (
        Rule(
            "self.mode != 'Mixed' || !has(self.pools) || "
            "!(has(self.pools.prefill) || has(self.pools.decode))",
            lambda s: (
                s.mode != "Mixed"
                or s.pools is None
                or (s.pools.prefill is None and s.pools.decode is None)
            ),
            "mode Mixed allows only the pool mixed",
            "pools",
        ),
        Rule(
            "self.mode != 'Disaggregated' || !has(self.pools) || !has(self.pools.mixed)",
            lambda s: s.mode != "Disaggregated" or s.pools is None or s.pools.mixed is None,
            "mode Disaggregated allows only the pools prefill and decode",
            "pools",
        ),
        Rule(
            "self.mode != 'Disaggregated' || !has(self.pools) || "
            "has(self.pools.prefill) == has(self.pools.decode)",
            lambda s: (
                s.mode != "Disaggregated"
                or s.pools is None
                or (s.pools.prefill is None) == (s.pools.decode is None)
            ),
            "mode Disaggregated needs both prefill and decode, or neither",
            "pools",
        ),
    )

    def pool(self, role: Role) -> PoolSpec:
        """The pool of a role; the default pool when the spec has none."""
        return (getattr(self.pools, role.value) if self.pools else None) or PoolSpec()

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the mode, in the order they are shown."""
        if self.mode == "Mixed":
            return (Role.MIXED,)
        return (Role.PREFILL, Role.DECODE)


NAME_RULES: Final = (
    Rule(
        f"self.metadata.name.matches('^[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?$')",
        lambda name: (
            re.fullmatch(rf"[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?", name) is not None
        ),
        f"metadata.name must start with a letter, consist of a-z, 0-9 and '-', and be at most "
        f"{MAX_NAME} characters, because the front Service has the same name",
        "metadata.name",
    ),
)
"""Rules on the whole object; `holds` takes the name."""
