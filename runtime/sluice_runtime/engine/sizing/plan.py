"""Resolves the sizes of one engine from its configuration, its model and its host. Pure.

Every setting left out of engine.json gets its value here, and the parts of the engine are built
from the result. Knows no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import (
    MAX_RUNNING_REQUESTS,
    RUNNING_STEP,
    TYPICAL_TOKENS,
    Accelerator,
    requests_in_pool,
)
from sluice_contract.config.engine import EngineConfig, SloTargets
from sluice_contract.config.host_cache import bytes_of
from sluice_contract.config.sizing import (
    API_PROCESS_BYTES,
    PlannedConfig,
    ResolvedConfig,
    planned_config,
)
from sluice_contract.config.supported import unsupported

from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.errors import InvalidConfigError, OutOfMemoryError
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import HostPages, SchedulerSettings, StepTarget

SAMPLING_SHARE: Final = 0.05
"""Share of a GPU's memory that sampling all rows may take where an engine chooses their number."""
GRAMMAR_BYTES: Final = 512 << 20
"""Host memory for grammars in use, if the KV pool is in host memory too."""
GRAMMAR_BYTES_BESIDE_GPU: Final = 4 << 30
"""Most host memory for grammars if the engine has a GPU, which runs hundreds of requests. Only
grammars at their limit of states use all of it."""
MATCHER_BYTES: Final = 20 << 20
"""Memory of one answer's grammar at its limit of states: 18 MB were measured."""
_VOCABULARY_BYTES: Final = 100 << 20
"""Memory of a vocabulary of 150,000 tokens, as grammars need it."""


def live_matchers(grammar_bytes: int) -> int:
    """Most answers that can follow a grammar at once within `grammar_bytes`; at least one."""
    return max(1, (grammar_bytes - _VOCABULARY_BYTES) // MATCHER_BYTES)


def grammar_bytes_beside_gpu(available_bytes: int) -> int:
    """Memory for grammars on a GPU's host: half of what is left once the model is on the GPU. The
    rest is for requests and the libraries' buffers."""
    return min(GRAMMAR_BYTES_BESIDE_GPU, (available_bytes - API_PROCESS_BYTES) // 2)


@dataclass(frozen=True)
class ReservedMemory:
    """Memory reserved for uses other than weights and KV pool, in bytes."""

    grammars: int
    sampling: int
    """Penalty tables and logits of maxRunningRequests rows."""
    api_process: int = API_PROCESS_BYTES

    @property
    def total(self) -> int:
        return self.grammars + self.sampling + self.api_process

    def __str__(self) -> str:
        return (
            f"{self.grammars >> 20} MiB for grammars, {self.sampling >> 20} MiB for logits and "
            f"penalties of maxRunningRequests, {self.api_process >> 20} MiB for the API process"
        )


@dataclass(frozen=True)
class HostBytes:
    """Memory of the device, and how much of it is still available once the weights are loaded."""

    total: int
    available: int


@dataclass(frozen=True)
class RunningRequests:
    """Number of requests that may run at once, as an engine chose it."""

    rows: int
    reason: str
    """Bound that decided: `KvPool`, `SamplingMemory`, `Least` or `Most`."""
    message: str


def resolved(config: EngineConfig) -> PlannedConfig:
    """`config` with every setting filled in, except maxRunningRequests on GPUs: see
    `running_requests`.

    Raises:
        InvalidConfigError: a setting that this version refuses, or contradicting values.
    """
    accelerator = config.accelerator or Accelerator()
    for refusal in unsupported(config, on_cpus=accelerator.is_cpu):
        raise InvalidConfigError(str(refusal))
    try:
        return planned_config(config)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from None


def context_length(config: EngineConfig, model_tokens: int) -> int:
    """The configured context length, or the model's own; never more than the model's."""
    configured = config.context_length
    if configured is not None and configured > model_tokens:
        error = ConfigError("contextLength", configured, f"at most {model_tokens} (the model's)")
        raise InvalidConfigError(str(error))
    return configured or model_tokens


def running_requests(
    pool_tokens: int,
    cuda_graph_max_batch: int,
    vocabulary_size: int,
    context_tokens: int,
    device_bytes: int,
) -> RunningRequests:
    """Number of requests that run at once on GPUs of `device_bytes` each, if it is not configured:
    that of `requests_in_pool`, lowered until sampling takes at most `SAMPLING_SHARE` of a GPU."""
    least = requests_in_pool(0, cuda_graph_max_batch)
    rows = in_pool = requests_in_pool(pool_tokens, cuda_graph_max_batch)
    limit = int(device_bytes * SAMPLING_SHARE)
    while rows > least and sampling_bytes(rows, vocabulary_size, context_tokens) > limit:
        rows = max(least, rows - RUNNING_STEP)
    text = f"from a KV pool of {pool_tokens:,} tokens, {TYPICAL_TOKENS:,} a request"
    if rows == least:
        return RunningRequests(rows, "Least", f"{text}; at least {least:,}")
    if rows < in_pool:
        message = f"{text}; sampling more takes over {SAMPLING_SHARE:.0%} of a GPU's memory"
        return RunningRequests(rows, "SamplingMemory", message)
    if rows == MAX_RUNNING_REQUESTS:
        return RunningRequests(rows, "Most", f"{text}; at most {rows:,}")
    return RunningRequests(rows, "KvPool", text)


def pool_pages(
    config: ResolvedConfig,
    context_tokens: int,
    bytes_per_token: int,
    host: HostBytes,
    reserved: ReservedMemory,
) -> int:
    """Pages of the KV pool: as configured, else as many as memoryPercent and the reserved memory
    leave, but no more than maxRunningRequests full contexts can use.

    Raises:
        OutOfMemoryError: names phase, tokens wanted and available, and the setting to lower.
    """
    page_size, percent = config.page_size, config.memory_percent
    spendable = max(0, host.available - max(host.total * (100 - percent) // 100, reserved.total))
    affordable = spendable // bytes_per_token
    if config.kv_pool_tokens is not None:
        left = max(0, host.available - reserved.sampling - reserved.api_process)
        if config.kv_pool_tokens * bytes_per_token > left:
            raise OutOfMemoryError(
                f"kvPoolTokens: {config.kv_pool_tokens} is not allowed; allowed: at most "
                f"{left // bytes_per_token}: KV pool allocation needs "
                f"{config.kv_pool_tokens} tokens of {bytes_per_token} bytes, and "
                f"{host.available >> 20} MiB are available, of which logits and penalties of "
                f"maxRunningRequests need {reserved.sampling >> 20} MiB and the API process "
                f"{reserved.api_process >> 20} MiB"
            )
        return config.kv_pool_tokens // page_size
    useful = config.max_running_requests * context_tokens
    if affordable < min(useful, context_tokens):
        raise OutOfMemoryError(
            f"KV pool allocation: a context of {context_tokens} tokens needs "
            f"{context_tokens * bytes_per_token >> 20} MiB, {spendable >> 20} MiB are "
            f"available (memoryPercent {percent}, {reserved}); lower contextLength "
            f"or maxRunningRequests, or set kvPoolTokens"
        )
    return pages_for(min(affordable, useful), page_size)


def host_pages(config: EngineConfig, page_bytes: int, host: HostBytes) -> HostPages | None:
    """Pages of the host tier; None: there is none. `host`: memory before the KV pool is allocated.

    Raises:
        InvalidConfigError: the configured memory holds less than one page.
        OutOfMemoryError: the host has less memory than configured.
    """
    if (cache := config.host_cache) is None:
        return None
    memory = bytes_of(cache.memory)
    if memory < page_bytes:
        error = ConfigError("hostCache.memory", memory, f"at least a page of {page_bytes} bytes")
        raise InvalidConfigError(str(error))
    if memory > host.available - API_PROCESS_BYTES:
        raise OutOfMemoryError(
            f"hostCache.memory: {memory >> 20} MiB are not allowed; allowed: what the host has "
            f"left, {host.available >> 20} MiB, of which the API process needs "
            f"{API_PROCESS_BYTES >> 20} MiB"
        )
    disk = bytes_of(cache.disk.size) if cache.disk else 0
    return HostPages(memory // page_bytes, disk // page_bytes, page_bytes)


def scheduler_settings(
    config: ResolvedConfig, context_tokens: int, pages: int, layers: int = 1
) -> SchedulerSettings:
    """Settings of the scheduler. `layers`: number of layers that a prompt's chunk may be split
    into."""
    return SchedulerSettings(
        limits=Limits(context_tokens, pages * config.page_size),
        page_size=config.page_size,
        chunk_size=None if config.chunk_size == -1 else config.chunk_size,
        max_prefill_tokens=config.max_prefill_tokens,
        min_prefill_tokens=config.min_prefill_tokens,
        max_running_requests=config.max_running_requests,
        max_queued_requests=config.max_queued_requests,
        mixed=config.mixed_chunk,
        prefix_cache=config.prefix_cache,
        eviction=config.prefix_eviction_policy,
        policy=config.scheduling_policy,
        seed=config.seed,
        priority_threshold=config.priority_threshold,
        conservativeness=config.reserve_percent / 100,
        report_chunks=config.role is not Role.MIXED,  # a decode engine may become a prefill engine
        target=_target(config.slo),
        max_adapters=config.max_loras_per_batch,
        layers=layers,
        draft_tokens=config.speculation.tokens if config.speculation else 0,
        draft_model=bool(config.speculation and config.speculation.draft),
        draft_head=bool(config.speculation and config.speculation.method == "Eagle"),
        ttft_seconds=_ttft_seconds(config.slo),
    )


def _target(slo: SloTargets | None) -> StepTarget | None:
    if slo is None or slo.itl_milliseconds is None:
        return None
    return StepTarget(slo.itl_milliseconds / 1000, slo.percentile / 100)


def _ttft_seconds(slo: SloTargets | None) -> float | None:
    if slo is None or slo.ttft_milliseconds is None:
        return None
    return slo.ttft_milliseconds / 1000
