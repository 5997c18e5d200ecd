"""The engine's composition root: configuration in, a loaded engine out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from sluice_contract.config import EngineConfig

from sluice_runtime.engine import host
from sluice_runtime.engine.log import Sizes
from sluice_runtime.engine.memory import allocation
from sluice_runtime.engine.plan import (
    NO_GRAMMARS,
    HostBytes,
    ReservedMemory,
    context_length,
    grammar_room,
    grammars_short_of_memory,
    pool_pages,
    scheduler_settings,
)
from sluice_runtime.engine.runner import OnLogits, Runner, RunnerSettings
from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.grammar.compile.process import CompileLimits
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.grammar.processes import GrammarProcesses, grammar_processes
from sluice_runtime.grammar.vocabulary import unusable
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.messages import PROTOCOL_VERSION, EngineReady
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.load import load_model
from sluice_runtime.model.weights_digest import weights_digest
from sluice_runtime.model_files import ModelFiles
from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.threads import processors

_log = logging.getLogger("sluice.engine")


@dataclass(frozen=True)
class EngineHooks:
    """What tests observe or change; production uses none of it."""

    page_order: Sequence[int] | None = None
    poison_freed_pages: bool = False
    """Fill freed pages with NaN, so that a read after the free is noticed."""
    on_logits: OnLogits | None = None
    backend: str | None = None
    """One of `layers.backend.BACKENDS`, instead of the best one available."""


@dataclass(frozen=True)
class Engine:
    """A loaded model with its pool and its scheduler."""

    settings: SchedulerSettings
    scheduler: Scheduler
    runner: Runner
    pool: PagePool
    grammars: GrammarQueue
    grammar_processes: GrammarProcesses
    """The owner of the engine closes them."""
    model: Decoder
    weights: str
    """`weights_digest` of its model."""
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
            kv_dtype=_name(self.model.dtype),
            weights=self.weights,
            pid=os.getpid(),
        )

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
    config: EngineConfig,
    files: ModelFiles,
    hooks: EngineHooks | None = None,
    processes: GrammarProcesses | None = None,
) -> Engine:
    """Loads the model and allocates the pool; `config` has been resolved. `processes`: the result
    of `processes_of`, if they were started before.

    Raises:
        StartupError: one line that says what to change.
    """
    hooks = hooks or EngineHooks()
    host.keep_freed_memory()
    torch.set_num_threads(config.threads or processors())
    with allocation("model weights", "more memory", "the size of the model"):
        model = load_model(files, config.dtype or "auto", config.seed, hooks.backend)
    weights = weights_digest(files, config.seed, _name(model.dtype))
    memory = host.memory()
    shape = KvShape(model.spec.layers, model.spec.kv_heads, model.spec.head_dim, model.dtype)
    context = context_length(config, model.spec.context_length_tokens)
    free = HostBytes(memory.total, memory.available)
    room = grammar_room(config, memory.total) if unusable(files) is None else NO_GRAMMARS
    vocabulary, rows = model.spec.vocabulary_size, config.max_running_requests or 1
    reserved = ReservedMemory(room.bytes, sampling_bytes(rows, vocabulary))
    pages = pool_pages(config, context, shape.bytes_per_token, free, reserved)
    if short := grammars_short_of_memory(config, shape.bytes_per_token, free, reserved):
        _log.info("%s", short)
    settings = scheduler_settings(config, context, pages)
    wanted = f"{settings.limits.kv_pool_tokens} tokens of {shape.bytes_per_token} bytes"
    with allocation("KV pool", wanted, "kvPoolTokens or memoryFraction"):
        pool = PagePool(shape, pages, settings.page_size)
    processes = processes or processes_of(config, files, vocabulary)
    matchers = Matchers(vocabulary, processes.mask_workers)
    with allocation("sampling", f"{rows} rows of {vocabulary} tokens", "maxRunningRequests"):
        runner = Runner(model, pool, RunnerSettings(rows, context), matchers, hooks.on_logits)
    allocator = PageAllocator(
        pages, hooks.page_order, pool.poison if hooks.poison_freed_pages else None
    )
    return Engine(
        settings=settings,
        scheduler=Scheduler(settings, allocator),
        runner=runner,
        pool=pool,
        grammars=GrammarQueue(processes.compilers, matchers),
        grammar_processes=processes,
        model=model,
        weights=weights,
        available_bytes=memory.available,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def processes_of(
    config: EngineConfig,
    files: ModelFiles,
    vocabulary_size: int,
    on_compiled: Callable[[], None] = lambda: None,
) -> GrammarProcesses:
    """The processes that compile and follow grammars for the model, not started yet."""
    room = grammar_room(config, host.memory().total)
    limits = CompileLimits(
        compile_seconds=config.grammar_compile_seconds or CompileLimits().compile_seconds,
        memory_bytes=room.bytes_each,
    )
    rows = config.max_running_requests or 1
    return grammar_processes(
        files.uri,
        vocabulary_size,
        limits,
        compilers=room.compilers,
        rows=rows,
        on_compiled=on_compiled,
    )
