"""The engine's composition root: configuration in, a loaded engine out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import torch
from sluice_contract.config.adapters import LEAST_MAX_LORA_RANK
from sluice_contract.config.sizing import PlannedConfig, ResolvedConfig

from sluice_runtime.engine.adapter_loading import AdapterLoader
from sluice_runtime.engine.adapters import AdapterTable
from sluice_runtime.engine.device import Device, allocation, step_device
from sluice_runtime.engine.draft_loading import (
    draft_model,
    head_drafts,
    loaded_head,
    model_drafts,
    spec_of_head,
)
from sluice_runtime.engine.executors import (
    AnnouncingRunner,
    OverlapExecutor,
    StepLauncher,
    StreamExecutor,
    SyncExecutor,
    executor_for,
)
from sluice_runtime.engine.report import StartupSizes
from sluice_runtime.engine.rows import RowSizes, RowState, allocated_rows
from sluice_runtime.engine.runner import OnLogits, Runner
from sluice_runtime.engine.sizing import host
from sluice_runtime.engine.sizing.gpu_plan import check_weights
from sluice_runtime.engine.sizing.plan import (
    GRAMMAR_BYTES,
    context_length,
    scheduler_settings,
)
from sluice_runtime.engine.sizing.pool_size import (
    DeviceMemory,
    LoadedModel,
    device_memory,
    live_grammars,
    model_bytes,
    pages_in_device_memory,
    pages_in_host_memory,
    tier_pages,
    with_running_requests,
)
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.vocabulary import token_bytes, unusable
from sluice_runtime.grammar.waiting import CompileThread, GrammarQueue
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers.adapters import SlotShape
from sluice_runtime.layers.rope import LongRope
from sluice_runtime.model.adapters import adapter_folder, read_adapter_config
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import spec_from
from sluice_runtime.model.files import (
    ModelFiles,
)
from sluice_runtime.model.layer_tensors import Placement
from sluice_runtime.model.load import load_model
from sluice_runtime.model.load_progress import OnRead, unreported
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.weights_digest import weights_digest
from sluice_runtime.parallel.group import SOLO, Group
from sluice_runtime.process.start import OnPhase, unmeasured
from sluice_runtime.process.threads import processors
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import HostPages, SchedulerSettings
from sluice_runtime.wire.messages import PROTOCOL_VERSION, Adapters, EngineReady

if TYPE_CHECKING:
    from sluice_runtime.engine.host_cache import HostCache

MAX_MASK_THREADS: Final = 8
"""Most threads that compute the masks of one step."""


@dataclass(frozen=True)
class EngineHooks:
    """What tests observe or change; production uses none of it."""

    page_order: Sequence[int] | None = None
    poison_freed_pages: bool = False
    """Whether freed pages are filled with NaN, so that a read after the free is noticed."""
    on_logits: OnLogits | None = None
    device: Device | None = None
    """Device to use instead of the configuration's accelerator."""
    device_memory: DeviceMemory | None = None
    """Memory to use instead of the device's; if set, the pool is planned as on a GPU."""


@dataclass(frozen=True)
class StartReports:
    """Callbacks about the progress of a start."""

    read: OnRead = unreported
    """See `load_model`."""
    ended: OnPhase = unmeasured


UNREPORTED: Final = StartReports()


@dataclass(frozen=True)
class Engine:
    """A loaded model with its pool and its scheduler."""

    settings: SchedulerSettings
    scheduler: Scheduler
    runner: Runner
    device: Device
    pool: PagePool
    grammars: GrammarQueue
    grammar_compiler: CompileThread
    """Thread that compiles grammars; the engine's owner closes it."""
    model: Decoder
    weights: str
    """`weights_digest` of the model."""
    adapters: AdapterLoader | None
    """Loader of adapters; None: the engine takes no adapters."""
    host_cache: HostCache | None
    """Host cache for evicted prefixes, which the engine's owner closes; None: evicted prefixes are
    lost."""
    available_bytes: int

    def ready(self, epoch: str, start: Mapping[str, float] = MappingProxyType({})) -> EngineReady:
        """The first message to the API process. `start`: seconds by phase."""
        settings = self.settings
        return EngineReady(
            protocol_version=PROTOCOL_VERSION,
            epoch=epoch,
            context_length_tokens=settings.limits.context_length_tokens,
            kv_pool_tokens=settings.limits.kv_pool_tokens,
            page_size_tokens=settings.page_size,
            max_running_requests=settings.max_running_requests,
            max_queued_requests=settings.max_queued_requests,
            vocabulary_size=self.model.spec.vocabulary_size,
            kv_dtype="fp8_e4m3" if self.model.kv_scales else _name(self.model.dtype),
            weights=self.weights,
            pid=os.getpid(),
            adapters=self.adapters.adapters if self.adapters else Adapters(),
            start=dict(start),
        )

    def executor(
        self, *, overlap: bool, announce: Callable[[Batch], None] | None = None
    ) -> SyncExecutor | OverlapExecutor | StreamExecutor:
        """Executor for the engine's steps, which the caller closes. `announce`: announces each step
        to other ranks."""
        runner: StepLauncher = self.runner
        if announce is not None:
            runner = AnnouncingRunner(runner, announce)
        if self.host_cache is not None:
            runner = self.host_cache.over(runner)
        if self.device.asynchronous:
            return StreamExecutor(runner, ahead=int(overlap))
        return executor_for(runner, overlap=overlap)

    def sizes(self) -> StartupSizes:
        """Sizes for the start-up line of the log."""
        settings = self.settings
        return StartupSizes(
            max_total_tokens=settings.limits.kv_pool_tokens,
            chunk_size=settings.chunk_size or -1,
            max_prefill_tokens=settings.max_prefill_tokens,
            max_running_requests=settings.max_running_requests,
            context_length_tokens=settings.limits.context_length_tokens,
            available_bytes=self.available_bytes,
            on_gpu=self.device.asynchronous,
        )


def build_engine(
    config: PlannedConfig,
    files: ModelFiles,
    hooks: EngineHooks | None = None,
    compiler: CompileThread | None = None,
    group: Group = SOLO,
    reports: StartReports = UNREPORTED,
) -> Engine:
    """Loads the model and allocates the pool; on a GPU the pool gets the memory that a full step
    leaves. `config`: resolved; on GPUs maxRunningRequests may be open. `compiler`: the result of
    `compiler_of` if it was started already. `group`: the engine's ranks, which all call this at
    once and get equal pools.

    Raises:
        StartupError: one line that says what to change.
    """
    hooks = hooks or EngineHooks()
    device = hooks.device or step_device(config.accelerator, group.rank)
    gpu_memory = hooks.device_memory or device_memory(device.place)
    site = _Site(files, device, gpu_memory, group, hooks)
    reports.ended("device")
    parts = _load(config, site, reports.read)
    reports.ended("weights")
    engine = _assemble(parts, site, group.least(_measured_pages(parts, site)), compiler)
    reports.ended("pool")
    return engine


@dataclass(frozen=True)
class _Site:
    """Inputs for building an engine: model files, device, ranks and test hooks."""

    files: ModelFiles
    device: Device
    gpu_memory: DeviceMemory | None
    """Memory of the GPU; None: the pool is planned in host memory."""
    group: Group
    hooks: EngineHooks


@dataclass(frozen=True)
class _Parts:
    """Parts of an engine that are built before its pool."""

    loaded: LoadedModel
    placement: Placement
    device: Device
    matchers: Matchers
    adapters: AdapterLoader | None
    on_logits: OnLogits | None

    def pool(self, shape: KvShape, pages: int) -> PagePool:
        page_size, draft = self.loaded.config.page_size, self.loaded.draft_kv_shape
        return PagePool(shape, pages, page_size, self.device.place, draft)

    def runner(self, pool: PagePool) -> Runner:
        """A runner over `pool`, with new rows."""
        rows = _rows(self.loaded, pool, self.device, self.matchers, self.adapters)
        return _runner(self.loaded, pool, rows, self.device, self.on_logits)


def _load(config: PlannedConfig, site: _Site, on_read: OnRead) -> _Parts:
    spec = spec_from(site.files.config)
    sized = _fitted(config, spec, site.gpu_memory, site.group)
    context = context_length(sized, spec.context_length_tokens)
    placement = _placement(sized, context, site.device, site.group)
    of_head = spec_of_head(sized, spec)
    draft = draft_model(sized, site.files, placement)
    model = _loaded(sized, site.files, placement, site.gpu_memory, on_read)
    head = loaded_head(sized, of_head, model, placement)
    return _Parts(
        LoadedModel(sized, model, context, draft or head),
        placement,
        site.device,
        Matchers(model.spec.vocabulary_size, min(MAX_MASK_THREADS, processors())),
        _adapter_loader(sized, model, placement, site.device),
        site.hooks.on_logits,
    )


def _measured_pages(parts: _Parts, site: _Site) -> int:
    """Number of pages of this rank's pool: in a GPU's memory, or in the host memory that grammars
    leave."""
    if site.gpu_memory is not None:
        return pages_in_device_memory(parts.loaded, site.gpu_memory, parts.pool, parts.runner)
    grammar_bytes = GRAMMAR_BYTES if unusable(site.files) is None else 0
    return pages_in_host_memory(parts.loaded, grammar_bytes)


def _assemble(parts: _Parts, site: _Site, pages: int, compiler: CompileThread | None) -> Engine:
    """The engine with a pool of `pages`."""
    loaded, model, gpu_memory = parts.loaded, parts.loaded.model, site.gpu_memory
    compiler = compiler or compiler_of(site.files, model.spec.vocabulary_size)
    settings = _settings(loaded, pages, tier_pages(loaded), parts.adapters)
    pool = _allocated_pool(settings, parts)
    # Allocated first: grammars get what is left of host memory.
    cache = _host_cache(loaded.config, settings, pool)
    held_as = _held_as(parts.placement, model)
    return Engine(
        settings=settings,
        scheduler=_scheduler(settings, pool, site.hooks, parts.adapters),
        runner=parts.runner(pool),
        device=site.device,
        pool=pool,
        grammars=GrammarQueue(compiler, parts.matchers, live_grammars(gpu_memory)),
        grammar_compiler=compiler,
        model=model,
        weights=weights_digest(site.files, loaded.config.seed, _name(model.dtype), held_as),
        adapters=parts.adapters,
        host_cache=cache,
        available_bytes=(gpu_memory.read() if gpu_memory else host.memory()).available,
    )


def _held_as(placement: Placement, model: Decoder) -> str:
    """Facts besides the files that change a model's keys and values: see `LongRope`."""
    scaling = model.spec.rope.scaling
    is_long = isinstance(scaling, LongRope) and scaling.is_long
    return f"{placement.weights}, long factors" if is_long else placement.weights


def _placement(config: ResolvedConfig, context: int, device: Device, group: Group) -> Placement:
    slots = _slots(config, context)
    weights, kv_cache = config.weight_dtype, config.kv_cache_dtype
    return Placement(device.place, group, slots, weights, kv_cache, context)


def _fitted(
    config: PlannedConfig, spec: ModelSpec, gpu_memory: DeviceMemory | None, group: Group
) -> ResolvedConfig:
    """Sets up the process for the engine; returns the configuration completed with settings that
    depend on the GPU's size."""
    host.keep_freed_memory()
    torch.set_num_threads(config.threads or processors())
    if isinstance(config, ResolvedConfig):
        return config
    total = None if gpu_memory is None else group.least(gpu_memory.read().total)
    return with_running_requests(config, spec, total)


def _rows(
    loaded: LoadedModel,
    pool: PagePool,
    device: Device,
    matchers: Matchers,
    loader: AdapterLoader | None,
) -> RowState:
    sizes = RowSizes(loaded.config.max_running_requests, loaded.context_tokens)
    tables = f"{sizes.rows} rows of {loaded.model.spec.vocabulary_size} tokens"
    with allocation("sampling", tables, "maxRunningRequests"):
        adapters = loader.table if loader else None
        return allocated_rows(loaded.model, pool, sizes, device, matchers, adapters)


def _runner(
    loaded: LoadedModel, pool: PagePool, rows: RowState, device: Device, on_logits: OnLogits | None
) -> Runner:
    """A runner over `pool`, with the draft head or draft model if there is one."""
    draft = loaded.draft
    if draft is None or isinstance(draft, Decoder):
        drafts = model_drafts(draft, pool, rows, device)
        return Runner(loaded.model, pool, rows, device, on_logits, drafts)
    follows = head_drafts(loaded.config, draft, pool, rows, device)
    runner = Runner(loaded.model, pool, rows, device, on_logits, follows)
    if follows is not None:
        runner.follow_with(follows)
    return runner


def _settings(
    loaded: LoadedModel, pages: int, tier: HostPages | None, loader: AdapterLoader | None
) -> SchedulerSettings:
    """Settings of a scheduler over `pages` and the pages of the host `tier`."""
    # Adapters and drafting work with whole steps only.
    layers = 1 if loader or loaded.draft else loaded.model.spec.layers
    settings = scheduler_settings(loaded.config, loaded.context_tokens, pages, layers)
    return replace(settings, host_pages=tier)


def _host_cache(
    config: ResolvedConfig, settings: SchedulerSettings, pool: PagePool
) -> HostCache | None:
    if settings.host_pages is None:
        return None
    from sluice_runtime.engine.host_cache import HostCache

    return HostCache(pool, settings.host_pages, config.host_cache_folder)


def _allocated_pool(settings: SchedulerSettings, parts: _Parts) -> PagePool:
    tokens, loaded = settings.limits.kv_pool_tokens, parts.loaded
    size = f"{tokens} tokens of {loaded.bytes_per_token} bytes"
    with allocation("KV pool", size, "kvPoolTokens or memoryPercent"):
        return parts.pool(loaded.kv_shape, tokens // settings.page_size)


def _scheduler(
    settings: SchedulerSettings, pool: PagePool, hooks: EngineHooks, loader: AdapterLoader | None
) -> Scheduler:
    """A scheduler that knows the loaded adapters."""
    freed = pool.poison if hooks.poison_freed_pages else None
    scheduler = Scheduler(settings, PageAllocator(pool.pages, hooks.page_order, freed))
    if loader is not None:
        loader.take_change(scheduler)
    return scheduler


def _loaded(
    config: ResolvedConfig,
    files: ModelFiles,
    placement: Placement,
    gpu_memory: DeviceMemory | None,
    on_read: OnRead,
) -> Decoder:
    if gpu_memory is not None:
        model = model_bytes(config, spec_from(files.config), placement.group.size)
        check_weights(model, config, gpu_memory.read())
    with allocation("model weights", "more memory", "the size of the model"):
        dtype, backend = config.dtype, config.attention_backend
        return load_model(files, dtype, config.seed, backend, placement, on_read)


def _slots(config: ResolvedConfig, context_tokens: int) -> SlotShape | None:
    """Sizes of the adapter slots of one step; None: the engine takes no adapters."""
    if not config.adapters and config.adapters_file is None:
        return None
    folders = [adapter_folder(adapter.uri) for adapter in config.adapters]
    ranks = [read_adapter_config(folder).rank for folder in folders]
    rank = config.max_lora_rank or max([LEAST_MAX_LORA_RANK, *ranks])
    step_tokens = max(config.max_prefill_tokens, context_tokens)
    return SlotShape(
        config.max_loras_per_batch,
        rank,
        step_tokens + config.max_running_requests,
    )


def _adapter_loader(
    config: ResolvedConfig, model: Decoder, placement: Placement, device: Device
) -> AdapterLoader | None:
    """Loader with all adapters that exist now already loaded; None: the engine takes no
    adapters."""
    if model.adapters is None:
        return None
    rows, file = config.max_running_requests, config.adapters_file
    table = AdapterTable(
        model.adapters, placement.shard(model.spec), model.spec.intermediate_size, rows, device
    )
    loader = AdapterLoader(table, config.model.served_names, Path(file) if file else None)
    loader.start(config.adapters)
    return loader


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compiler_of(
    files: ModelFiles, vocabulary_size: int, on_compiled: Callable[[], None] = lambda: None
) -> CompileThread:
    """The thread that compiles grammars for the model, not started yet."""
    return CompileThread(lambda: token_bytes(files, vocabulary_size), on_compiled)
