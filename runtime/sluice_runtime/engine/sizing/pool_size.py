"""Sizes an engine from the memory there is, read or measured: pages of the KV pool, requests with a
grammar at once, and on GPUs requests that run at once.

On a GPU a full step runs before the KV pool is allocated: one layer of the model over a pool of one
layer, as large as the step needs. The memory that the device then lacks is what a step takes,
because torch keeps the peak that it used; memory of other libraries is included.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from sluice_contract.config.accelerators import MIN_RUNNING_REQUESTS, Accelerator
from sluice_contract.config.host_cache import bytes_of
from sluice_contract.config.sizing import PlannedConfig, ResolvedConfig, sized_config

from sluice_runtime.engine.device import place_of
from sluice_runtime.engine.runner import Runner
from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.engine.sizing import host
from sluice_runtime.engine.sizing.gpu_plan import (
    MIB,
    DeviceBytes,
    ModelBytes,
    PoolQuestion,
    device_pool_pages,
    planned_pool_tokens,
    smaller_chunk,
    step_tokens,
)
from sluice_runtime.engine.sizing.plan import (
    GRAMMAR_BYTES,
    HostBytes,
    ReservedMemory,
    context_length,
    grammar_bytes_beside_gpu,
    host_pages,
    live_matchers,
    pool_pages,
    running_requests,
    scheduler_settings,
)
from sluice_runtime.engine.warm_up import full_step
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.layers.packed import can_pack
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import drafts_with_head, resolve_draft
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.settings import HostPages, SchedulerSettings

if TYPE_CHECKING:
    from sluice_runtime.model.eagle import EagleHead

_log = logging.getLogger("sluice.engine")


class DeviceMemory(Protocol):
    """Reads the memory of one GPU."""

    def read(self) -> DeviceBytes: ...

    def release(self) -> None:
        """Gives back cached memory that is not in use."""
        ...


class CudaMemory:
    """Memory of a CUDA device: see `DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> DeviceBytes:
        available, total = torch.cuda.mem_get_info(self._device)
        return DeviceBytes(total, available)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


def device_memory(device: torch.device) -> DeviceMemory | None:
    """Memory of a GPU; None on a CPU, whose memory `sizing.host` reads."""
    return CudaMemory(device) if device.type == "cuda" else None


def smallest_gpu_bytes(accelerator: Accelerator, ranks: int) -> int | None:
    """Memory of the smallest of an engine's GPUs, before any of them is used; None on CPUs, and
    where torch finds no GPU."""
    if place_of(accelerator).type == "cpu":
        return None
    gpus = range(min(ranks, torch.cuda.device_count()))
    return min((torch.cuda.get_device_properties(i).total_memory for i in gpus), default=None)


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model and its draft model, for which a pool is sized."""

    config: ResolvedConfig
    model: Decoder
    context_tokens: int
    draft: Decoder | EagleHead | None = None

    @property
    def kv_shape(self) -> KvShape:
        """Shape of this rank's part of the KV cache."""
        return _kv_shape(self.model)

    @property
    def draft_kv_shape(self) -> KvShape | None:
        """Shape of the draft model's part of the KV cache; None without a draft model."""
        return _kv_shape(self.draft) if self.draft else None

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token takes in the pool, including the draft model's."""
        draft = self.draft_kv_shape
        return self.kv_shape.bytes_per_token + (draft.bytes_per_token if draft else 0)


def _kv_shape(model: Decoder | EagleHead) -> KvShape:
    spec, ranks = model.spec, model.group.size
    kv_heads = spec.rank_kv_heads(ranks)
    return KvShape(spec.layers, kv_heads, spec.head_dim, model.dtype, model.kv_scales)


def model_bytes(config: PlannedConfig, spec: ModelSpec, ranks: int) -> ModelBytes:
    """Memory of the model and its draft model, computed before they are loaded, for the configured
    dtype or else their own."""
    draft = resolve_draft(config)
    kv_itemsize = 1 if config.kv_cache_dtype == "fp8_e4m3" else None
    packed = can_pack(place_of(config.accelerator))
    own = ModelBytes(spec, _itemsize(config, spec), ranks, kv_itemsize=kv_itemsize, packed=packed)
    if draft is None:
        return own
    if drafts_with_head(config):
        from sluice_runtime.model.eagle import head_spec  # only needed with a draft head

        head = head_spec(draft, spec)
        return replace(own, draft=replace(own, spec=head.layer, other_values=head.other_values))
    draft_spec = spec_from(draft.config)
    drafts = replace(own, spec=draft_spec, itemsize=_itemsize(config, draft_spec))
    return replace(own, draft=drafts)


def _itemsize(config: PlannedConfig, spec: ModelSpec) -> int:
    dtype = spec.dtype if config.dtype == "auto" else config.dtype
    size: int = getattr(torch, dtype).itemsize
    return size


def with_running_requests(
    config: PlannedConfig, spec: ModelSpec, total_bytes: int | None
) -> ResolvedConfig:
    """`config` with maxRunningRequests, where it was left out. `total_bytes`: memory of the
    smallest GPU of the engine, so that all ranks choose alike; None: unknown.

    Raises:
        InvalidConfigError: see `plan.context_length`.
    """
    if isinstance(config, ResolvedConfig):
        return config
    if total_bytes is None:
        return sized_config(config, MIN_RUNNING_REQUESTS)
    ranks = config.tensor_parallel_size
    pool_tokens = planned_pool_tokens(config, model_bytes(config, spec, ranks), total_bytes)
    context = context_length(config, spec.context_length_tokens)
    graph_batch = config.cuda_graph_max_batch
    chosen = running_requests(pool_tokens, graph_batch, spec.vocabulary_size, context, total_bytes)
    _log.info("max_running_requests=%d (%s), %s", chosen.rows, chosen.reason, chosen.message)
    return sized_config(config, chosen.rows)


def pages_in_host_memory(loaded: LoadedModel, grammar_bytes: int) -> int:
    """Pages of a KV pool in host memory, which also holds `grammar_bytes` for grammars.

    Raises:
        OutOfMemoryError: see `plan.pool_pages`.
    """
    config, token_bytes = loaded.config, loaded.bytes_per_token
    memory = host.memory()
    tier = bytes_of(config.host_cache.memory) if config.host_cache else 0
    free = HostBytes(memory.total, memory.available - tier)
    rows, vocabulary = config.max_running_requests, loaded.model.spec.vocabulary_size
    sampling = sampling_bytes(rows, vocabulary, loaded.context_tokens)
    reserved = ReservedMemory(grammar_bytes, sampling)
    return pool_pages(config, loaded.context_tokens, token_bytes, free, reserved)


def tier_pages(loaded: LoadedModel) -> HostPages | None:
    """Pages of the host tier; see `plan.host_pages`."""
    memory = host.memory()
    page_bytes = loaded.kv_shape.bytes_per_token * loaded.config.page_size
    return host_pages(loaded.config, page_bytes, HostBytes(memory.total, memory.available))


def live_grammars(gpu_memory: DeviceMemory | None) -> int:
    """Most requests with a grammar at once. On a CPU engine grammars get fixed memory, on a GPU's
    host part of what is free."""
    if gpu_memory is None:
        return live_matchers(GRAMMAR_BYTES)
    available = host.memory().available
    most = live_matchers(grammar_bytes_beside_gpu(available))
    _log.info(
        "memory of the host: %d MiB are left; at most %d requests may have a grammar at once",
        available // MIB,
        most,
    )
    return most


def pages_in_device_memory(
    loaded: LoadedModel,
    memory: DeviceMemory,
    pool_of: Callable[[KvShape, int], PagePool],
    runner_over: Callable[[PagePool], Runner],
) -> int:
    """Pages of a KV pool on the GPU; runs a full step first, to measure it. `pool_of`: makes a pool
    with this number of pages.

    Raises:
        OutOfMemoryError: see `gpu_plan.device_pool_pages`; or the step ran out of memory.
    """
    config, spec = loaded.config, loaded.model.spec
    memory.release()
    device = memory.read()
    pages = _pages_of_a_full_step(config)
    settings = scheduler_settings(config, loaded.context_tokens, pages)
    shape = replace(loaded.kv_shape, layers=1)
    try:
        step = measured_step(
            memory, partial(pool_of, shape, pages), runner_over, settings, spec.vocabulary_size
        )
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{error}; chunkSize {smaller_chunk(config)} is next") from None
    # The step used no grammars and no penalties of long contexts, which requests may ask for.
    rows = config.max_running_requests
    step = max(step, sampling_bytes(rows, spec.vocabulary_size, loaded.context_tokens))
    part = model_bytes(config, spec, loaded.model.group.size)
    gathers = loaded.model.backend.name == TORCH.name
    question = PoolQuestion(config, part, loaded.context_tokens, device, step, gathers)
    pool_pages = device_pool_pages(question)
    _log.info(
        "memory of the GPU: %d of %d MiB are left by the weights; a full step of %d tokens takes "
        "%d MiB; %d MiB are kept free",
        *(device.available // MIB, device.total // MIB, step_tokens(config)),
        *(step // MIB, question.reserved // MIB),
    )
    return pool_pages


def _pages_of_a_full_step(config: ResolvedConfig) -> int:
    """Pages for a step with one chunk in one row, and in every other row a token and its
    successor."""
    page, rows = config.page_size, config.max_running_requests
    return pages_for(step_tokens(config) + 1, page) + rows * pages_for(2, page)


def measured_step(
    memory: DeviceMemory,
    pool_of_one_layer: Callable[[], PagePool],
    runner_over: Callable[[PagePool], Runner],
    settings: SchedulerSettings,
    vocabulary_size: int,
) -> int:
    """Bytes that a full step takes besides weights and KV pool, including permanent tables such as
    those of sampling. All memory is released afterwards.

    Raises:
        OutOfMemoryError: the step found too little memory.
    """
    before = memory.read().available
    full_step(runner_over(pool_of_one_layer()), settings, vocabulary_size)
    taken = before - memory.read().available
    memory.release()
    return max(0, taken)
