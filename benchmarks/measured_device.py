"""A real model as a replay's device: each step is computed and timed, on the replay's clock.

So arrivals, queues and latencies are as on a machine that does nothing else. A run can be simulated
afterwards with the cost that fits its own steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace
from sluice_contract.config.accelerators import Accelerator
from sluice_runtime.engine.build import Engine
from sluice_runtime.scheduler.batch import Batch, SampledTokens, StepShape, shape_of
from sluice_simulator.costs import Coefficients, Cost
from sluice_simulator.device import SimulatedRows
from sluice_simulator.traces.request import TraceRequest

Clock = Callable[[], float]


class MeasuredDevice:
    """Computes and times each step. Answers end where the trace says, so sampled tokens are not
    used."""

    host_seconds = 0.0
    ahead = 0

    def __init__(self, engine: Engine, requests: Sequence[TraceRequest], clock: Clock) -> None:
        self._runner = engine.runner
        self._vocabulary = engine.model.spec.vocabulary_size
        self._rows = SimulatedRows(requests)
        self._clock = clock
        self.steps: list[tuple[StepShape, float]] = []

    def run(self, batch: Batch) -> tuple[SampledTokens, float]:
        tokens = self._rows.forward(batch)
        known = self._in_vocabulary(batch)
        began = self._clock()
        self._runner.forward(known)
        seconds = self._clock() - began
        self.steps.append((shape_of(batch), seconds))
        return tokens, seconds

    def _in_vocabulary(self, batch: Batch) -> Batch:
        """The batch with token ids that the model has: those of a trace are larger."""
        rows = [
            replace(row, token_ids=tuple(token % self._vocabulary for token in row.token_ids))
            for row in batch.extend_rows
        ]
        return replace(batch, extend_rows=tuple(rows))


def fitted(name: str, engine: Engine, steps: Sequence[tuple[StepShape, float]]) -> Cost:
    """The cost with the least squared relative error over these steps."""
    features = np.array([shape.features for shape, _ in steps], dtype=float)
    seconds = np.array([taken for _, taken in steps])
    found = _least_squares(features / seconds[:, None])
    error = float(np.abs(features @ found / seconds - 1).mean())
    step, token, product, row, context = map(float, found)
    limits = engine.settings.limits
    return Cost(
        name=name,
        source=f"fitted to {len(steps)} measured steps, mean relative error {error:.0%}",
        accelerator=Accelerator(),
        context_length=limits.context_length_tokens,
        kv_pool_tokens=limits.kv_pool_tokens,
        coefficients=Coefficients(
            step=step, token=token, product=product, row=row, context=context
        ),
    )


def _least_squares(features: np.ndarray) -> np.ndarray:
    """Coefficients whose products with each row are nearest to 1. Negative ones are left out, the
    most negative first, until none is left."""
    kept = list(range(features.shape[1]))
    while True:
        answers = np.ones(len(features))
        solved = np.linalg.lstsq(features[:, kept], answers, rcond=None)[0]
        if (solved >= 0).all():
            found = np.zeros(features.shape[1])
            found[kept] = solved
            return found
        del kept[int(solved.argmin())]
