"""What every rank of an engine does between loading and its first step, in this order."""

from __future__ import annotations

from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import EngineConfig

from sluice_runtime.engine.build import Engine
from sluice_runtime.engine.graph_capture import capture_graphs
from sluice_runtime.engine.host import collect_garbage_rarely
from sluice_runtime.engine.warm_up import warm_up


def prepare(config: EngineConfig, engine: Engine) -> None:
    """Runs the first steps, sets the garbage collector, which each capture runs, and captures
    graphs for steps that decode.

    Raises:
        OutOfMemoryError: there is too little memory for the steps.
    """
    warm_up(engine.runner, engine.settings, engine.model.spec.vocabulary_size)
    collect_garbage_rarely()
    if config.role is not Role.PREFILL:
        capture_graphs(engine, config.cuda_graph_max_batch or 0)
