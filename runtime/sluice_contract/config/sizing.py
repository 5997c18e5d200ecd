"""Resolves every engine setting to a value, and says where the value came from.

Order: the user's, else the accelerator's product, else its memory, else the general default. Pure;
the operator shows the result in status, the engine uses it when a key is missing from its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from sluice_contract.base import ConfigError, ContractModel, ContradictionsError
from sluice_contract.config.accelerators import (
    CPU,
    GENERAL_MEMORY_PERCENT,
    MIN_RUNNING_REQUESTS,
    UNKNOWN,
    WIDE_FROM,
    Accelerator,
    Sizes,
    memory_mib_of,
    memory_percent,
    product_row,
    tier_sizes,
)
from sluice_contract.config.adapters import DEFAULT_MAX_LORAS_PER_BATCH
from sluice_contract.config.engine import (
    AttentionBackend,
    DType,
    EngineConfig,
    EngineSettings,
    EvictionPolicy,
    KvCacheDtype,
    SchedulingPolicy,
    SloTargets,
    WeightDType,
)
from sluice_contract.config.kv_transfer import KvTransfer

Value = bool | int | float | str


class Source(StrEnum):
    """Where a value came from."""

    USER = "User"
    PRODUCT = "Product"
    MEMORY = "Memory"
    GENERAL = "General"


class Resolved(ContractModel):
    """A value with its origin; `origin` is for a person, e.g. `A100-40GB TP1`."""

    value: Value
    source: Source
    origin: str


API_PROCESS_BYTES: Final = 256 << 20
"""Largest memory of an engine's API process. Measured when ready: 70 MiB with the sample's 256
tokens, 125 MiB with a vocabulary of 150,000. The tokenizer caches at most 20 MiB of words; the rest
is for requests."""

SLACK: Final = "slack"
"""Name of the policy that orders by a promised time to first token."""

CACHE_POLICIES: Final = frozenset({"lpm", "dfs-weight"})
"""Policies that order by what the prefix cache holds."""

GENERAL: Final[dict[str, Value]] = {
    "dtype": "auto",
    "kv_cache_dtype": "auto",
    "attention_backend": "auto",
    "tensor_parallel_size": 1,
    "max_prefill_tokens": 16_384,
    "max_running_requests": MIN_RUNNING_REQUESTS,
    "max_queued_requests": 4_096,
    "page_size": 16,
    "memory_percent": GENERAL_MEMORY_PERCENT,
    "mixed_chunk": True,
    "prefix_cache": True,
    "prefix_eviction_policy": "lru",
    "overlap": False,
    "scheduling_policy": "fcfs",
    "reserve_percent": 100,
    "priority_threshold": 10,
}
"""General defaults. Keys that depend on the model or the host (context length, pool, threads, on
GPUs maxRunningRequests) are left to the engine."""


UNRESOLVED: Final = frozenset({"kv_transfer", "speculation", "host_cache"})
"""Settings of several fields, which have their own defaults."""


class PlannedConfig(EngineConfig):
    """An engine's file with a value for every setting that does not depend on the model. None still
    has a meaning: the model's own context length; a pool size, and on GPUs a number of running
    requests, that follow from memory; all processors; the adapters' largest rank."""

    dtype: DType
    weight_dtype: WeightDType = "auto"
    kv_cache_dtype: KvCacheDtype
    tensor_parallel_size: int
    chunk_size: int
    max_prefill_tokens: int
    min_prefill_tokens: int
    max_queued_requests: int
    cuda_graph_max_batch: int
    attention_backend: AttentionBackend
    page_size: int
    memory_percent: int
    mixed_chunk: bool
    prefix_cache: bool
    prefix_eviction_policy: EvictionPolicy
    overlap: bool
    scheduling_policy: SchedulingPolicy
    reserve_percent: int
    priority_threshold: int
    max_loras_per_batch: int = DEFAULT_MAX_LORAS_PER_BATCH
    strict_requests: bool = False
    kv_transfer: KvTransfer = KvTransfer()
    accelerator: Accelerator


class ResolvedConfig(PlannedConfig):
    """Complete configuration from which an engine is built, once its model is known."""

    max_running_requests: int


def planned_config(config: EngineConfig, accelerator: Accelerator | None = None) -> PlannedConfig:
    """`config` with settings resolved for `accelerator`, by default for its own. A `ResolvedConfig`
    if maxRunningRequests is known.

    Raises:
        ContradictionsError: see `resolve_settings`.
    """
    accelerator = accelerator or config.accelerator or Accelerator()
    values = _fields(config) | {"accelerator": accelerator}
    values |= resolved_values(resolve_settings(config, accelerator, config.slo))
    kind = ResolvedConfig if "max_running_requests" in values else PlannedConfig
    return kind.model_validate(values)


def sized_config(config: PlannedConfig, rows: int) -> ResolvedConfig:
    """`config` with `rows` as maxRunningRequests."""
    return ResolvedConfig.model_validate(_fields(config) | {"max_running_requests": rows})


def _fields(config: EngineConfig) -> dict[str, object]:
    """Field values that are not None, by field name."""
    values = {name: getattr(config, name) for name in type(config).model_fields}
    return {name: value for name, value in values.items() if value is not None}


def resolve_settings(
    user: EngineSettings, accelerator: Accelerator, slo: SloTargets | None = None
) -> dict[str, Resolved]:
    """Every setting that can be known before the engine starts, by field name.

    Raises:
        ContradictionsError: resolved values contradict each other, or what `slo` promises.
    """
    resolved = {name: _general(value) for name, value in GENERAL.items()}
    resolved |= _by_accelerator(accelerator)
    if not accelerator.is_cpu:
        resolved["overlap"] = _general(True, "a GPU computes beside the host")
        del resolved["max_running_requests"]  # follows from the KV pool, so from the model
    if slo is not None and slo.ttft_milliseconds is not None:
        resolved["scheduling_policy"] = _general(SLACK, "slo.ttftMilliseconds")
    if _drafts_with_head(user):
        resolved["cuda_graph_max_batch"] = _general(0, "speculation.method Eagle")
    for name in EngineSettings.model_fields.keys() - UNRESOLVED:
        if (value := getattr(user, name)) is not None:
            resolved[name] = Resolved(value=value, source=Source.USER, origin="spec")
    resolved.setdefault("min_prefill_tokens", _general(resolved["page_size"].value, "one page"))
    values = resolved_values(resolved)
    against = (
        *_against_slo(slo, values),
        *_against_host_cache(user, values),
        *_against_head(user, values),
        *_against_8_bits(accelerator, values),
        *_against_fp8_pages(values),
    )
    if contradictions := (*_contradictions(values), *against):
        raise ContradictionsError(contradictions)
    return resolved


def check_slo(slo: SloTargets | None, values: Mapping[str, Value]) -> None:
    """Checks that the resolved values, by field name, let the engine keep what `slo` promises.

    Raises:
        ContradictionsError: names the settings that prevent it.
    """
    if contradictions := tuple(_against_slo(slo, values)):
        raise ContradictionsError(contradictions)


def _against_slo(slo: SloTargets | None, values: Mapping[str, Value]) -> Iterator[ConfigError]:
    promises_ttft = slo is not None and slo.ttft_milliseconds is not None
    if values["scheduling_policy"] == SLACK and not promises_ttft:
        yield ConfigError("schedulingPolicy", SLACK, "another policy, or set slo.ttftMilliseconds")
    if slo is None or slo.itl_milliseconds is None:
        return
    if values["chunk_size"] == -1:
        yield ConfigError("chunkSize", -1, "at least pageSize, as slo.itlMilliseconds is set")
    if not values["mixed_chunk"]:
        yield ConfigError("mixedChunk", False, "true, as slo.itlMilliseconds is set")


def _against_host_cache(user: EngineSettings, values: Mapping[str, Value]) -> Iterator[ConfigError]:
    if (cache := user.host_cache) is None:
        return
    if user.speculation is not None and (method := user.speculation.method) == "Eagle":
        allowed = "NGram or Draft beside hostCache, which keeps no pages of a head"
        yield ConfigError("speculation.method", method, allowed)
    if not values["prefix_cache"]:
        yield ConfigError("hostCache", cache.to_json_dict(), "only beside prefixCache")
    if (gpus := values["tensor_parallel_size"]) != 1:
        allowed = f"only for engines of one GPU so far (tensorParallelSize is {gpus})"
        yield ConfigError("hostCache", cache.to_json_dict(), allowed)


def _drafts_with_head(user: EngineSettings) -> bool:
    return user.speculation is not None and user.speculation.method == "Eagle"


def _against_head(user: EngineSettings, values: Mapping[str, Value]) -> Iterator[ConfigError]:
    if not _drafts_with_head(user):
        return
    if (gpus := values["tensor_parallel_size"]) != 1:
        allowed = f"NGram or Draft for engines of several GPUs (tensorParallelSize is {gpus})"
        yield ConfigError("speculation.method", "Eagle", allowed)
    if (graphs := values["cuda_graph_max_batch"]) != 0:
        allowed = "0 beside speculation.method Eagle, whose steps are no graphs so far"
        yield ConfigError("cudaGraphMaxBatch", graphs, allowed)


def _against_8_bits(accelerator: Accelerator, values: Mapping[str, Value]) -> Iterator[ConfigError]:
    """Errors of settings that 8-bit weights exclude, because their kernels do not support them.
    With an accelerator only type `auto` is allowed: see `supported`."""
    if not accelerator.is_cpu or (weights := values.get("weight_dtype", "auto")) == "auto":
        return
    if (dtype := values["dtype"]) == "float16":
        allowed = f"auto beside dtype {dtype}; or dtype bfloat16 or float32"
        yield ConfigError("weightDtype", weights, allowed)
    if (backend := values["attention_backend"]) == "torch":
        allowed = f"auto beside attentionBackend {backend}; or attentionBackend native"
        yield ConfigError("weightDtype", weights, allowed)


def _against_fp8_pages(values: Mapping[str, Value]) -> Iterator[ConfigError]:
    """Errors of settings that 8-bit pages exclude: the compiled kernels cannot read such pages, and
    FA3 would need 8-bit queries too."""
    backend, pages = values["attention_backend"], values["kv_cache_dtype"]
    others = {
        "native": "auto or torch",
        "flashinfer-fa3": "auto, flashinfer, flashinfer-fa2 or torch",
    }
    if pages == "fp8_e4m3" and (allowed := others.get(str(backend))):
        yield ConfigError("attentionBackend", backend, f"{allowed} beside kvCacheDtype {pages}")


def resolved_values(resolved: Mapping[str, Resolved]) -> dict[str, Value]:
    """The values alone, by field name."""
    return {name: entry.value for name, entry in resolved.items()}


def _general(value: Value, origin: str = "default") -> Resolved:
    return Resolved(value=value, source=Source.GENERAL, origin=origin)


def _by_accelerator(accelerator: Accelerator) -> dict[str, Resolved]:
    sizes, source, origin = sizes_of(accelerator)
    values = {
        "chunk_size": sizes.chunk_size,
        "cuda_graph_max_batch": sizes.cuda_graph_max_batch,
        "tensor_parallel_size": max(1, accelerator.count),
    }
    sizes_found = {
        name: Resolved(value=value, source=source, origin=origin) for name, value in values.items()
    }
    return sizes_found | {"memory_percent": _memory_percent(accelerator, sizes)}


def _memory_percent(accelerator: Accelerator, sizes: Sizes) -> Resolved:
    """memoryPercent by the memory in the node's label, else by the product's."""
    memory_mib = memory_mib_of(accelerator)
    if memory_mib is None:
        return _general(GENERAL_MEMORY_PERCENT)
    ranks = max(1, accelerator.count)
    return Resolved(
        value=memory_percent(memory_mib, sizes, ranks),
        source=Source.MEMORY if accelerator.memory_mib else Source.PRODUCT,
        origin=f"{memory_mib / 1024:.0f} GiB TP{ranks}",
    )


def sizes_of(accelerator: Accelerator) -> tuple[Sizes, Source, str]:
    """Sizes of an accelerator, their source, and what decided them, as text."""
    tensor_parallel = max(1, accelerator.count)
    wide = tensor_parallel >= WIDE_FROM
    if accelerator.is_cpu:
        return CPU, Source.GENERAL, "CPU"
    if accelerator.product and (row := product_row(accelerator.product)):
        sizes = tier_sizes(row.memory_gib, wide=wide)
        return sizes, Source.PRODUCT, f"{row.name} TP{tensor_parallel}"
    if accelerator.memory_mib:
        gib = accelerator.memory_mib / 1024
        sizes = tier_sizes(gib, wide=wide)
        return sizes, Source.MEMORY, f"{gib:.0f} GiB TP{tensor_parallel}"
    return UNKNOWN, Source.GENERAL, f"unknown accelerator TP{tensor_parallel}"


def _contradictions(values: Mapping[str, Value]) -> Iterator[ConfigError]:
    """Errors of settings that contradict each other: a step must hold the least by which a prompt
    advances."""
    names = ("chunk_size", "page_size", "min_prefill_tokens", "max_prefill_tokens")
    chunk, page, minimum, most = (_tokens(values[name]) for name in names)
    if most < page:
        yield ConfigError("maxPrefillTokens", most, f"at least pageSize ({page})")
    if minimum > max(most, page):
        yield ConfigError("minPrefillTokens", minimum, f"at most maxPrefillTokens ({most})")
    if chunk != -1 and chunk < page:
        yield ConfigError("chunkSize", chunk, f"-1 (off) or at least pageSize ({page})")
    if chunk != -1 and minimum > max(chunk, page):
        yield ConfigError("minPrefillTokens", minimum, f"at most chunkSize ({chunk})")
    if (pool := values.get("kv_pool_tokens")) is not None and (tokens := _tokens(pool)) % page:
        below = tokens // page * page
        near = f"{below} or {below + page}" if below else str(page)
        yield ConfigError("kvPoolTokens", tokens, f"a multiple of pageSize ({page}), as {near}")
    policy = values["scheduling_policy"]
    if policy in CACHE_POLICIES and not values["prefix_cache"]:
        allowed = "a policy other than lpm and dfs-weight, which need prefixCache"
        yield ConfigError("schedulingPolicy", policy, allowed)


def _tokens(value: Value) -> int:
    assert isinstance(value, int)
    return value
