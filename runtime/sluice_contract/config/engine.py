"""EngineConfig: everything that decides how one engine behaves, as one frozen value.

The operator renders it into a ConfigMap; `python -m sluice_runtime --config FILE` reads it. A key
left out takes a default that `sluice_contract.config.sizing` explains. Identity (pod name, address)
is not in here: it comes from the Downward API.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from sluice_contract.base import (
    UNORDERED,
    ConfigError,
    ContractModel,
    config_error_from,
    refuse_repeated_keys,
)
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import (
    MAX_RUNNING_REQUESTS,
    MIN_RUNNING_REQUESTS,
    Accelerator,
)
from sluice_contract.config.adapters import AdapterRefs
from sluice_contract.config.host_cache import HostCacheSettings
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.config.server import ServerSettings
from sluice_contract.config.speculation import SpeculationSettings
from sluice_contract.config.tracing import Tracing

DType = Literal["auto", "float32", "bfloat16", "float16"]
WeightDType = Literal["auto", "int8"]
KvCacheDtype = Literal["auto", "fp8_e4m3"]
SchedulingPolicy = Literal[
    "fcfs", "lpm", "dfs-weight", "lof", "sjf", "hrrn", "srtf", "round-robin", "random", "priority",
    "adaptive", "slack",
]  # fmt: skip
READS_PRIORITY: Final[tuple[SchedulingPolicy, ...]] = ("priority", "adaptive")
"""Policies under which a request's priority counts."""

EvictionPolicy = Literal["lru", "lfu", "fifo", "slru"]
AttentionBackend = Literal[
    "auto", "native", "torch", "flashinfer", "flashinfer-fa2", "flashinfer-fa3"
]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


def _as_written(percent: float) -> int | float:
    """A whole percentage as an integer, such as 95, not 95.0."""
    return int(percent) if percent == int(percent) else percent


Percentile = Annotated[
    float, Field(ge=50, le=99.9), AfterValidator(_as_written), PlainSerializer(_as_written)
]
"""A percentage."""
MAX_ALIASES: Final = 16
NAMES_ONCE: Final = "aliases each once, and other than the model's name"
ToolCallFormat = Literal["hermes", "llama3-json", "mistral", "qwen3-coder"]
ReasoningFormat = Literal["deepseek-r1", "mistral", "none", "qwen3"]


class ModelRef(ContractModel):
    """Which weights to serve, and under what name."""

    uri: str = Field(
        min_length=1,
        max_length=2048,
        description="Where the weights are: the path of a folder, file:///path, or dummy://name "
        "for random weights.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Name of the model in the OpenAI API. Left out: the last part of the URI, so "
        "that another URI is another name to clients.",
    )
    aliases: list[ModelName] | None = Field(
        default=None,
        max_length=MAX_ALIASES,
        json_schema_extra=UNORDERED,
        description="Further names of the model, which requests may give instead.",
    )
    revision: str | None = Field(
        default=None,
        max_length=128,
        pattern=r"^[A-Za-z0-9_][-./A-Za-z0-9_]*$",
        description="Branch, tag or commit of a hub's model; main or a commit of a bucket's.",
    )

    @property
    def served_name(self) -> str:
        """The name clients use."""
        last = self.uri.rstrip("/").rpartition("/")[2]
        if self.uri.startswith("oci://"):
            last = re.split("[:@]", last)[0]
        return self.name or last

    @property
    def served_names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.served_name, *(self.aliases or ()))


class EngineSettings(ContractModel):
    """Settings of one engine. All are optional: a missing setting is resolved to a value with its
    source."""

    dtype: DType | None = Field(
        default=None, description="Type of weights and activations; auto: the checkpoint's."
    )
    weight_dtype: WeightDType | None = Field(
        default=None, description="Type of matrices; int8: on CPUs."
    )
    kv_cache_dtype: KvCacheDtype | None = Field(
        default=None, description="Type of the KV cache; auto: as dtype."
    )
    tensor_parallel_size: int | None = Field(
        default=None, ge=1, le=64, description="GPUs that share each layer of one engine."
    )
    context_length: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="Most tokens of prompt and answer together; at most the model's own limit.",
    )
    chunk_size: int | None = Field(
        default=None,
        ge=-1,
        le=1_048_576,
        description="Maximum tokens of one step: tokens of prompts, and one for each request that "
        "decodes in it. A longer prompt is computed in chunks. -1 turns chunking off.",
    )
    max_prefill_tokens: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="Most prompt tokens in one step, of all prompts together.",
    )
    min_prefill_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Prompt tokens of each step, however many requests decode in it; at least "
        "pageSize.",
    )
    max_running_requests: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Most requests that run at once; more wait. Left out on GPUs: "
        f"{MIN_RUNNING_REQUESTS} to {MAX_RUNNING_REQUESTS:,}.",
    )
    max_queued_requests: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Most requests that wait; one more is answered 429.",
    )
    cuda_graph_max_batch: int | None = Field(
        default=None,
        ge=0,
        le=4096,
        description="Largest decode batch captured as a CUDA graph; none are on a CPU.",
    )
    attention_backend: AttentionBackend | None = Field(
        default=None,
        description="What computes attention: native or torch on CPUs, flashinfer or torch on "
        "GPUs; auto: the fastest there is. flashinfer-fa2 and -fa3 fix the kernels for prompts.",
    )
    page_size: int | None = Field(
        default=None, ge=1, le=1024, description="Tokens in one page of the KV pool."
    )
    kv_pool_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Size of the KV pool in tokens, a multiple of pageSize. Left out: what "
        "memoryPercent leaves, at most maxRunningRequests whole contexts.",
    )
    memory_percent: int | None = Field(
        default=None,
        ge=1,
        le=99,
        description="Percent of the GPU's or container's memory for weights and KV pool; less "
        "where full steps or the API process need more than the rest. Not read beside "
        "kvPoolTokens.",
    )
    mixed_chunk: bool | None = Field(
        default=None,
        description="Whether requests also decode in steps that compute prompts. If not, they wait "
        "for at most eight such steps.",
    )
    prefix_cache: bool | None = Field(
        default=None,
        description="Whether computed prompts are kept for later prompts that begin alike.",
    )
    prefix_eviction_policy: EvictionPolicy | None = Field(
        default=None, description="Which cached prefixes go first when pages are needed."
    )
    overlap: bool | None = Field(
        default=None,
        description="Whether the next step is planned while one runs, and on GPUs launched. "
        "On CPUs both want the same cores.",
    )
    scheduling_policy: SchedulingPolicy | None = Field(
        default=None, description="Order in which waiting requests are admitted."
    )
    reserve_percent: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="How much of each answer's expected length admission reserves, in percent. "
        "Larger: fewer requests run at once, fewer are sent back.",
    )
    priority_threshold: int | None = Field(
        default=None,
        ge=0,
        description="With schedulingPolicy priority: a request sends back running ones whose "
        "priority is lower by more than this.",
    )
    max_loras_per_batch: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Most adapters whose requests run at once; others wait. Each takes device "
        "memory. Not read without adapters.",
    )
    max_lora_rank: int | None = Field(
        default=None,
        ge=1,
        le=512,
        description="Largest rank of an adapter. Not read without adapters.",
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="Threads that compute on CPUs."
    )
    tool_call_format: ToolCallFormat | None = Field(
        default=None,
        description="How the model writes tool calls. Left out, it follows from the chat template "
        "of a known family.",
    )
    reasoning_format: ReasoningFormat | None = Field(
        default=None,
        description="How the model writes the reasoning before its answer, which chats then have "
        "as reasoning_content.",
    )
    strict_requests: bool | None = Field(
        default=None,
        description="Whether a request is refused if a part of it would be ignored or lowered. "
        "Otherwise the header X-Sluice-Ignored-Fields names what is ignored.",
    )
    speculation: SpeculationSettings | None = Field(
        default=None,
        description="Drafts tokens, verifies several in one step; answers stay the same. Left "
        "out: off. Not read by prefill engines.",
    )
    host_cache: HostCacheSettings | None = Field(
        default=None,
        description="Keeps evicted prefixes in the host's memory and on its disk. Left out: off. "
        "Not read by decode engines.",
    )
    kv_transfer: KvTransfer | None = Field(
        default=None, description="How prefill engines hand the KV cache to decode engines."
    )


class SloTargets(ContractModel):
    """Latency targets that the engine promises and aims at in every step."""

    ttft_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time to the first token, in milliseconds. Requests that can have it are "
        "admitted before those that cannot any more; none is refused for it.",
    )
    itl_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time between the steps that give an answer tokens, in milliseconds; kept "
        "drafts do not shorten it. The engine chooses the chunk of each step so that the step "
        "keeps it; chunkSize is the most it may choose.",
    )
    percentile: Percentile = Field(
        default=99, description="Share of the steps that must keep it, in percent."
    )

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.ttft_milliseconds is None and self.itl_milliseconds is None:
            raise ValueError("ttftMilliseconds, itlMilliseconds or both")
        return self


class EngineConfig(EngineSettings):
    """The engine's file. Only `model.uri` must be given; unknown keys are refused."""

    model: ModelRef
    adapters: AdapterRefs = Field(
        default=(),
        description="LoRA adapters that are served beside the model. An engine does not start "
        "without one of them.",
    )
    adapters_file: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File with further `adapters`. The engine follows its changes: it loads new "
        "adapters and removes others while it serves. An adapter that cannot be loaded is logged, "
        "and tried again.",
    )
    role: Role = Role.MIXED
    server: ServerSettings = ServerSettings()
    slo: SloTargets | None = None
    accelerator: Accelerator | None = Field(
        default=None,
        description="GPUs of the engine, which ends with AcceleratorMissing where it finds none. "
        "Left out, it computes on CPUs.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Seed of random weights, and of the order of schedulingPolicy random. Requests "
        "without a seed draw one from the system's entropy.",
    )

    handover_key_file: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File with the key by which router and engines of a service know each other. A "
        "file named second-key in the same folder verifies, too. Both are read again when they "
        "change. Required in roles prefill and decode. In role mixed, an engine without it cannot "
        "continue an answer that another engine began.",
    )
    host_cache_folder: str | None = Field(
        default=None,
        max_length=4096,
        description="Folder of the file of hostCache.disk; left out: that of temporary files.",
    )
    tracing: Tracing | None = Field(
        default=None, description="Where spans of sampled requests go; left out: nowhere."
    )

    @field_validator("model")
    @classmethod
    def _each_name_once(cls, value: ModelRef) -> ModelRef:
        if len(set(value.served_names)) < len(value.served_names):
            raise ValueError(NAMES_ONCE)
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [*self.model.served_names, *(adapter.name for adapter in self.adapters)]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f"adapters whose names differ; {name!r} is there twice")
        return self

    @model_validator(mode="after")
    def _signatures_need_a_key(self) -> Self:
        if self.server.require_signature and self.handover_key_file is None:
            raise ValueError("server.requireSignature only beside handoverKeyFile")
        return self

    @field_validator("chunk_size")
    @classmethod
    def _chunk_of_something(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("-1 (off) or at least one page")
        return value


def parse_engine_config(text: str | bytes) -> EngineConfig:
    """An EngineConfig from JSON text.

    Raises:
        ConfigError: one line with key, value and what is allowed.
    """
    try:
        config = EngineConfig.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise config_error_from(error, EngineConfig) from None
    refuse_repeated_keys(text)
    if config.role is Role.DECODE and (cache := config.host_cache) is not None:
        allowed = "none in role decode, which has no prompts to keep"
        raise ConfigError("hostCache", cache.to_json_dict(), allowed)
    drafts = config.speculation
    if config.role is not Role.MIXED and drafts and drafts.method == "Eagle":
        allowed = f"NGram or Draft in role {config.role}: the KV cache of a head is not handed over"
        raise ConfigError("speculation.method", drafts.method, allowed)
    return config


def read_engine_config(path: Path) -> EngineConfig:
    """The EngineConfig in the file at `path`; raises ConfigError, also if the file is missing."""
    try:
        return parse_engine_config(path.read_bytes())
    except OSError as error:
        raise ConfigError("--config", str(path), f"a readable file ({error.strerror})") from None


def render_engine_config(config: EngineConfig) -> str:
    """The file's text: sorted keys, so that equal configurations have equal hashes."""
    return json.dumps(config.to_json_dict(), indent=2, sort_keys=True) + "\n"
