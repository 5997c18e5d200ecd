"""Captures an engine's decode steps at its start, and says in the log how many or why none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sluice_runtime.engine.build import Engine
from sluice_runtime.engine.graph_sizes import graph_batches
from sluice_runtime.engine.graphs import Capture, CudaCapture, DecodeGraphs
from sluice_runtime.engine.memory import allocation

SETTING: Final = "cudaGraphMaxBatch"

_log = logging.getLogger("sluice.engine")


def capture_graphs(
    engine: Engine, largest: int, begin_capture: Callable[[], Capture] = CudaCapture
) -> None:
    """From now on the engine replays graphs for decode steps of up to `largest` rows.

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
    # Of this rank: its pool has its key heads.
    heads = pool.shape.kv_heads * (model.spec.heads // model.spec.kv_heads)
    wanted = f"{len(batches)} decode batches of up to {batches[-1]} rows"
    with allocation("CUDA graphs", wanted, SETTING):
        graphs = DecodeGraphs(pool, model.spec.hidden_size, batches)
        wrappers = model.backend.graph_wrappers(pool, heads)
        if model.adapters is not None:
            model.adapters.use_all()
        graphs.capture(model.hidden, wrappers.of, begin_capture())
    engine.runner.replay(graphs)
    _log.info("CUDA graphs: %s", wanted)
