"""The engine's composition root: configuration in, a loaded engine out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from sluice_contract.base import ConfigError
from sluice_contract.config.adapters import LEAST_MAX_LORA_RANK
from sluice_contract.config.sizing import PlannedConfig, ResolvedConfig

from sluice_runtime.engine.adapter_loading import AdapterLoader
from sluice_runtime.engine.adapters import AdapterTable
from sluice_runtime.engine.device import Device, allocation, step_device
from sluice_runtime.engine.report import Sizes
from sluice_runtime.engine.runner import (
    AnnouncingRunner,
    OnLogits,
    OverlapExecutor,
    RowSizes,
    RowState,
    Runner,
    StepLauncher,
    StreamExecutor,
    SyncExecutor,
    allocated_rows,
    executor_for,
)
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
from sluice_runtime.errors import InvalidConfigError
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
    DRAFT_KEY,
    ModelFiles,
    drafts_with_head,
    of_draft,
    resolve_draft,
)
from sluice_runtime.model.layer_tensors import Placement
from sluice_runtime.model.load import load_model
from sluice_runtime.model.load_progress import OnRead, unreported
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.weights_digest import weights_digest
from sluice_runtime.parallel.group import SOLO, Group
from sluice_runtime.process.threads import processors
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import HostPages, SchedulerSettings
from sluice_runtime.wire.messages import PROTOCOL_VERSION, Adapters, EngineReady

if TYPE_CHECKING:
    from sluice_runtime.engine.draft import DraftModel
    from sluice_runtime.engine.eagle import EagleDrafts
    from sluice_runtime.engine.host_cache import HostCache
    from sluice_runtime.model.eagle import EagleHead, HeadSpec

_DRAFT_WEIGHTS: Final = ("draft model weights", "more memory", "the size of the draft model")
"""What memory is too short for, and what to change."""
MAX_MASK_THREADS: Final = 8
"""For the rows of one step that have grammars."""


@dataclass(frozen=True)
class EngineHooks:
    """What tests observe or change; production uses none of it."""

    page_order: Sequence[int] | None = None
    poison_freed_pages: bool = False
    """Fill freed pages with NaN, so that a read after the free is noticed."""
    on_logits: OnLogits | None = None
    device: Device | None = None
    """Instead of the one of the configuration's accelerator."""
    device_memory: DeviceMemory | None = None
    """Instead of the device's; also makes the pool be planned as on a GPU."""


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
    """The owner of the engine closes it."""
    model: Decoder
    weights: str
    """`weights_digest` of its model."""
    adapters: AdapterLoader | None
    """None: there will be none."""
    host_cache: HostCache | None
    """None: what the prefix cache evicts is gone. The owner of the engine closes it."""
    available_bytes: int

    def ready(self, epoch: str) -> EngineReady:
        """The first message to the API process."""
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
        )

    def executor(
        self, *, overlap: bool, announce: Callable[[Batch], None] | None = None
    ) -> SyncExecutor | OverlapExecutor | StreamExecutor:
        """What runs its steps; the caller closes it. `announce` tells other ranks of each."""
        runner: StepLauncher = self.runner
        if announce is not None:
            runner = AnnouncingRunner(runner, announce)
        if self.host_cache is not None:
            runner = self.host_cache.over(runner)
        if self.device.asynchronous:
            return StreamExecutor(runner, ahead=int(overlap))
        return executor_for(runner, overlap=overlap)

    def sizes(self) -> Sizes:
        """For the start-up line."""
        settings = self.settings
        return Sizes(
            max_total_tokens=settings.limits.kv_pool_tokens,
            chunk_size=settings.chunk_size or -1,
            max_prefill_tokens=settings.max_prefill_tokens,
            max_running_requests=settings.max_running_requests,
            context_length_tokens=settings.limits.context_length_tokens,
            available_bytes=self.available_bytes,
        )


def build_engine(
    config: PlannedConfig,
    files: ModelFiles,
    hooks: EngineHooks | None = None,
    compiler: CompileThread | None = None,
    group: Group = SOLO,
    on_read: OnRead = unreported,
) -> Engine:
    """Loads the model and allocates the pool, on a GPU with what a full step leaves of its memory;
    `config` has been resolved, on GPUs with or without maxRunningRequests. `compiler`: that of
    `compiler_of`, if it was started before. `group`: the ranks of this engine, which all call this
    at once and get pools alike. `on_read`: see `load_model`.

    Raises:
        StartupError: one line that says what to change.
    """
    hooks = hooks or EngineHooks()
    device = hooks.device or step_device(config.accelerator, group.rank)
    gpu_memory = hooks.device_memory or device_memory(device.place)
    spec = spec_from(files.config)
    config = _fitted(config, spec, gpu_memory, group)
    context = context_length(config, spec.context_length_tokens)
    placement = _placement(config, context, device, group)
    of_head = _head_spec(config, spec)
    draft = _draft_model(config, files, placement)
    model = _loaded(config, files, placement, gpu_memory, on_read)
    head = _head(config, of_head, model, placement)
    compiler = compiler or compiler_of(files, model.spec.vocabulary_size)
    matchers = Matchers(model.spec.vocabulary_size, min(MAX_MASK_THREADS, processors()))
    loader = _adapter_loader(config, model, placement, device)

    def pool_of(shape: KvShape, pages: int) -> PagePool:
        return PagePool(shape, pages, config.page_size, device.place, loaded.draft_kv_shape)

    def runner_over(pool: PagePool) -> Runner:
        rows = _rows(loaded, pool, device, matchers, loader)
        return _runner(loaded, pool, rows, device, hooks.on_logits)

    loaded = LoadedModel(config, model, context, draft or head)
    tier = tier_pages(loaded)
    pages = _pool_pages(loaded, files, gpu_memory, pool_of, runner_over)
    settings = _settings(loaded, group.least(pages), tier, loader)
    pool = _allocated_pool(settings, loaded, pool_of)
    cache = _host_cache(config, settings, pool)  # before grammars are given what the host has left
    return Engine(
        settings=settings,
        scheduler=_scheduler(settings, pool, hooks, loader),
        runner=runner_over(pool),
        device=device,
        pool=pool,
        grammars=GrammarQueue(compiler, matchers, live_grammars(gpu_memory)),
        grammar_compiler=compiler,
        model=model,
        weights=weights_digest(files, config.seed, _name(model.dtype), _held_as(placement, model)),
        adapters=loader,
        host_cache=cache,
        available_bytes=(gpu_memory.read() if gpu_memory else host.memory()).available,
    )


def _held_as(placement: Placement, model: Decoder) -> str:
    """What else than files decides which keys and values a model computes: see `LongRope`."""
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
    """The process set up for the engine, and its settings with all that the GPU's size decides."""
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
    """With what drafts for it, a head or a model."""
    draft = loaded.draft
    if draft is None or isinstance(draft, Decoder):
        drafts = _drafts(draft, pool, rows, device)
        return Runner(loaded.model, pool, rows, device, on_logits, drafts)
    follows = _head_drafts(loaded.config, draft, pool, rows, device)
    runner = Runner(loaded.model, pool, rows, device, on_logits, follows)
    if follows is not None:
        runner.follow_with(follows)
    return runner


def _settings(
    loaded: LoadedModel, pages: int, tier: HostPages | None, loader: AdapterLoader | None
) -> SchedulerSettings:
    """Settings of a scheduler over `pages` and the pages of the host `tier`."""
    # Adapters and what drafts follow whole steps only.
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


def _pool_pages(
    loaded: LoadedModel,
    files: ModelFiles,
    gpu_memory: DeviceMemory | None,
    pool_of: Callable[[KvShape, int], PagePool],
    runner_over: Callable[[PagePool], Runner],
) -> int:
    """Pages of this rank's pool: in a GPU's memory, or in the host's beside what grammars need."""
    if gpu_memory is not None:
        return pages_in_device_memory(loaded, gpu_memory, pool_of, runner_over)
    return pages_in_host_memory(loaded, GRAMMAR_BYTES if unusable(files) is None else 0)


def _allocated_pool(
    settings: SchedulerSettings, loaded: LoadedModel, pool_of: Callable[[KvShape, int], PagePool]
) -> PagePool:
    tokens = settings.limits.kv_pool_tokens
    size = f"{tokens} tokens of {loaded.bytes_per_token} bytes"
    with allocation("KV pool", size, "kvPoolTokens or memoryPercent"):
        return pool_of(loaded.kv_shape, tokens // settings.page_size)


def _scheduler(
    settings: SchedulerSettings, pool: PagePool, hooks: EngineHooks, loader: AdapterLoader | None
) -> Scheduler:
    """That knows the adapters that are loaded."""
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


def _draft_model(config: ResolvedConfig, files: ModelFiles, placement: Placement) -> Decoder | None:
    """On the same ranks as the model of `files`; None: no model of its own drafts."""
    draft = resolve_draft(config)
    if draft is None or drafts_with_head(config):
        return None
    if allowed := _vocabularies_differ(files, draft):
        raise InvalidConfigError(str(ConfigError(DRAFT_KEY, draft.uri, allowed)))
    placement = replace(placement, slots=None)
    with allocation(*_DRAFT_WEIGHTS), of_draft():
        dtype, backend = config.dtype, config.attention_backend
        return load_model(draft, dtype, config.seed, backend, placement)


def _head_spec(config: ResolvedConfig, target: ModelSpec) -> HeadSpec | None:
    """Spec of the head that drafts, before the model is read; None: no head drafts."""
    draft = resolve_draft(config)
    if draft is None or not drafts_with_head(config):
        return None
    from sluice_runtime.model.eagle import head_spec  # as below: where a head drafts alone

    return head_spec(draft, target)


def _head(
    config: ResolvedConfig, spec: HeadSpec | None, model: Decoder, placement: Placement
) -> EagleHead | None:
    if spec is None:
        return None
    from sluice_runtime.model.eagle import load_head

    with allocation(*_DRAFT_WEIGHTS):
        return load_head(spec, model, placement.device, config.attention_backend)


def _head_drafts(
    config: ResolvedConfig, head: EagleHead, pool: PagePool, rows: RowState, device: Device
) -> EagleDrafts | None:
    if pool.draft is None or config.speculation is None:
        return None
    from sluice_runtime.engine.draft import DraftDraws
    from sluice_runtime.engine.eagle import EagleDrafts

    draws = DraftDraws(rows.sampling, rows.matchers, device)
    return EagleDrafts(head, pool.draft, rows.table, draws, device, config.speculation.tokens)


def _vocabularies_differ(files: ModelFiles, draft: ModelFiles) -> str | None:
    """What a draft model has to have, if it has not. Tokens are compared where both tokenizers are
    known."""
    size, own = (spec_from(model_files.config).vocabulary_size for model_files in (files, draft))
    if own != size:
        return f"a model with the model's vocabulary of {size} tokens (it has {own})"
    if unusable(files) or unusable(draft):
        return None
    tokens = zip(token_bytes(files, size), token_bytes(draft, size), strict=True)
    differs = next((i for i, (token, other) in enumerate(tokens) if token != other), None)
    return None if differs is None else f"a model with the model's tokens ({differs} is another)"


def _drafts(
    draft: Decoder | None, pool: PagePool, rows: RowState, device: Device
) -> DraftModel | None:
    if draft is None or pool.draft is None:
        return None
    from sluice_runtime.engine.draft import DraftDraws, DraftModel  # where a model drafts alone

    draws = DraftDraws(rows.sampling, rows.matchers, device)
    return DraftModel(draft, pool.draft, rows.table, draws, device)


def _slots(config: ResolvedConfig, context_tokens: int) -> SlotShape | None:
    """For the adapters of one step; None: there will be none."""
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
    """With all adapters that there are now; None: the model takes none."""
    if model.adapters is None:
        return None
    rows, file = config.max_running_requests, config.adapters_file
    table = AdapterTable(model.adapters, placement.shard, rows, device)
    loader = AdapterLoader(table, config.model.served_names, Path(file) if file else None)
    loader.start(config.adapters)
    return loader


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compiler_of(
    files: ModelFiles, vocabulary_size: int, on_compiled: Callable[[], None] = lambda: None
) -> CompileThread:
    """What compiles grammars for the model, not started yet."""
    return CompileThread(lambda: token_bytes(files, vocabulary_size), on_compiled)
