"""Drives an engine in-process, step by step, and keeps what it computed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import torch
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.sizing import ResolvedConfig
from sluice_runtime.engine.build import EngineHooks, build_engine
from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.engine.prepare import prepare
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.pacing import FixedChunk, LayerSplit
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import Generate, HostCacheLoad, Sampling, TokenDelta

from tests.runtime.scheduler.building import SplitChunk

torch.set_num_threads(1)

MAX_STEPS = 5000


@dataclass
class Run:
    """What one run of an engine produced."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    logits: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """One [vocabulary] tensor for each token, in order."""
    deltas: list[TokenDelta] = field(default_factory=list)
    terminals: dict[str, list[TokenDelta]] = field(default_factory=dict)
    modes: Counter[str] = field(default_factory=Counter)
    chunks: dict[str, list[int]] = field(default_factory=dict)
    """Lengths of the chunks, but for the last, of each prompt that was cut."""
    cuts: int = 0
    retractions: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    """Prompt tokens that each request found computed."""
    resumed_tokens: int = 0
    """Cached tokens of requests that were sent back and started again."""
    launched_ahead: int = 0
    """Batches that were launched before the results of the one before them were in."""
    evictions: int = 0
    """Pages that left the prefix cache for others."""
    graph_steps: int = 0
    """Steps that CUDA graphs computed."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that were verified, and that answers kept."""
    host: HostCacheLoad | None = None
    """What the host cache did."""
    layers: str = ""
    """Name of the class that computed them."""


class Recorder:
    """Knows which request a row belongs to, from the batches alone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rows: dict[int, str] = {}

    def __call__(self, batch: Batch, logits: torch.Tensor) -> None:
        for row, line in zip(batch.sampling_rows, logits, strict=True):
            if (request := self._rows.get(row)) is not None:  # else of the warm-up
                self._run.logits.setdefault(request, []).append(line.clone())

    def learn(self, batch: Batch) -> None:
        starts = {extend.row: extend.start for extend in batch.extend_rows}
        for added in batch.added_rows:
            self._rows[added.row] = added.request_id
            if added.request_id in self._run.cached:
                self._run.resumed_tokens += starts[added.row]
            self._run.cached.setdefault(added.request_id, starts[added.row])
        for extend in batch.extend_rows:
            if not extend.samples:
                chunks = self._run.chunks.setdefault(self._rows[extend.row], [])
                chunks.append(len(extend.token_ids))


def engine_config(uri: str, **settings: Any) -> EngineConfig:
    """A small engine; threads are one, since tests share the machine."""
    defaults = {"threads": 1, "kv_pool_tokens": 4096, "max_running_requests": 32}
    return EngineConfig.model_validate({"model": {"uri": uri}, **defaults, **settings})


def resolved_config(uri: str, **settings: Any) -> ResolvedConfig:
    """What an engine of `engine_config` is built from."""
    config = resolved(engine_config(uri, **settings))
    assert isinstance(config, ResolvedConfig)
    return config


def generate(request_id: str, prompt: Sequence[int], max_tokens: int, **fields: Any) -> Generate:
    """A greedy request unless `sampling` says otherwise."""
    sampling = fields.pop("sampling", Sampling(temperature=0.0))
    return Generate(request_id, list(prompt), max_tokens, sampling, **fields)


def run_engine(
    config: EngineConfig,
    requests: Sequence[Generate],
    *,
    hooks: EngineHooks | None = None,
    chunk_sizes: Sequence[int] = (),
    overlap: bool = False,
    split: LayerSplit | None = None,
    logits: bool = True,
) -> Run:
    """Runs all requests to their ends: half are there at once, one more comes with every step.

    `chunk_sizes`: budgets that the steps have in turn, instead of the configuration's. `split`: of
    all chunks that may be. `logits`: whether to record them, which graphs that sample cannot.
    """
    run = Run()
    recorder = Recorder(run)
    config = resolved(config)
    files = resolve(config.model.uri)
    hooks = hooks or EngineHooks()
    if logits:
        hooks = replace(hooks, on_logits=recorder)
    engine = build_engine(config, files, hooks)
    if engine.device.place.type == "cuda":
        prepare(config, engine)
    if split:
        choice = SplitChunk(engine.settings.chunk_size or 1, split)
        engine.scheduler._pacing._choice = choice
    try:
        with closing(engine.executor(overlap=overlap)) as device:
            drive(engine.scheduler, device, run, recorder, requests, chunk_sizes)
    finally:
        torch.set_num_threads(1)
        if engine.host_cache is not None:
            engine.host_cache.close()
    status = engine.scheduler.status()
    run.layers = type(engine.model.layers).__name__
    run.cuts, run.retractions = status.chunk_cuts, status.retractions
    run.evictions = status.evicted_pages
    run.drafted_tokens, run.accepted_tokens = status.drafted_tokens, status.accepted_tokens
    run.host = status.host_cache
    run.graph_steps = engine.runner.graph_steps or 0
    assert status.pages_available == status.pages_total, "pages leaked"
    return run


def drive(
    scheduler: Scheduler,
    device: Executor,
    run: Run,
    recorder: Recorder,
    requests: Sequence[Generate],
    chunk_sizes: Sequence[int],
) -> None:
    """Steps until nothing is left to do."""
    in_flight: deque[tuple[Batch, PendingResult]] = deque()
    coming, budgets = deque(requests), cycle(chunk_sizes)
    for _ in range((len(requests) + 1) // 2):
        scheduler.add(coming.popleft())
    for _ in range(MAX_STEPS):
        if coming:
            scheduler.add(coming.popleft())
        if (budget := next(budgets, None)) is not None:
            scheduler._pacing._choice = FixedChunk(budget)
        batch = scheduler.next_batch(0.0)
        if batch is not None:
            recorder.learn(batch)
            run.modes[batch.mode.value] += 1
            run.launched_ahead += bool(in_flight)
            in_flight.append((batch, device.launch(batch)))
        elif not (coming or in_flight):
            return
        if not in_flight or (batch and len(in_flight) <= device.ahead):
            continue
        pending, result = in_flight.popleft()
        for delta in scheduler.process(pending, result(), 0.0).deltas:
            run.deltas.append(delta)
            run.tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason:
                run.terminals.setdefault(delta.request_id, []).append(delta)
        if pending.verify_rows:  # nothing was launched since: the last ones are of refused drafts
            for name, lines in run.logits.items():
                del lines[len(run.tokens[name]) :]
    raise AssertionError("requests are still running")
