"""Prepares every rank between loading and its first step: warm-up steps, then the garbage
collector's settings, then CUDA graphs for decode steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sluice_contract.cluster.labels import Role
from sluice_contract.config.sizing import PlannedConfig

from sluice_runtime.engine.build import Engine
from sluice_runtime.engine.device import allocation
from sluice_runtime.engine.graphs import Capture, CudaCapture, first_batches, graph_batches
from sluice_runtime.engine.runner import GRAPH_SETTING
from sluice_runtime.engine.sizing.host import collect_garbage_rarely
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.process.start import OnPhase, unmeasured

_log = logging.getLogger("sluice.engine")


def prepare(config: PlannedConfig, engine: Engine, ended: OnPhase = unmeasured) -> None:
    """Runs warm-up steps, sets up the garbage collector, and captures graphs for decode steps.

    Raises:
        OutOfMemoryError: there is too little memory for the steps.
    """
    warm_up(engine.runner, engine.settings, engine.model.spec.vocabulary_size)
    collect_garbage_rarely()
    ended("warm-up")
    if config.role is not Role.PREFILL:
        capture_graphs(engine, config.cuda_graph_max_batch)
        ended("graphs")


def capture_missing_graphs(config: PlannedConfig, engine: Engine) -> None:
    """Captures the graphs of an engine that was a prefill engine until now. Without enough memory
    for them, the engine decodes without graphs."""
    if config.role is Role.PREFILL or engine.runner.graph_steps is not None:
        return
    try:
        capture_graphs(engine, config.cuda_graph_max_batch)
    except OutOfMemoryError as error:
        _log.warning("CUDA graphs: none, %s", error)


def capture_graphs(
    engine: Engine,
    largest: int,
    begin_capture: Callable[[], Capture] = CudaCapture,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Captures the first graphs, which the engine replays for decode steps of up to `largest`
    rows; `late_graphs` captures the others. Several ranks capture all of them here: one that later
    lacks memory for a graph would leave the others waiting in it.

    Raises:
        OutOfMemoryError: names the setting to lower.
    """
    model, pool = engine.model, engine.pool
    batches = graph_batches(min(largest, engine.settings.max_running_requests))
    if not batches:
        return
    if model.backend.graph_wrappers is None:
        _log.info("CUDA graphs: none, as %s cannot be captured", model.backend.name)
        return
    if engine.runner.has_head:
        _log.info("CUDA graphs: none, as the steps of a draft head cannot be captured")
        return
    # Heads of this rank, like the key heads in its pool.
    heads = model.spec.heads // model.group.size
    first = first_batches(batches) if model.group.size == 1 else batches
    captured = f"{len(first)} decode batches of up to {batches[-1]} rows"
    with allocation("CUDA graphs", captured, GRAPH_SETTING):
        wrappers = model.backend.graph_wrappers(pool, heads)
        capture = begin_capture()
        took = engine.runner.capture(batches, wrappers.wrapper, capture, first, clock)
    later = f", {more} more between steps" if (more := len(batches) - len(first)) else ""
    sizes = ", ".join(f"{rows}: {seconds:.2f}" for rows, seconds in took.items())
    _log.info("CUDA graphs: %s%s; seconds by rows: %s", captured, later, sizes)
