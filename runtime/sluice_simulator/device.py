"""What a replay runs its batches on: something that answers a batch with tokens and seconds.

Here the one with a cost model. A benchmark has one that runs a real model and measures it, on the
same virtual clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.step_shape import StepShape, shape_of

from sluice_simulator.costs import Cost
from sluice_simulator.rows import SimulatedRows
from sluice_simulator.traces.request import TraceRequest


class Device(Protocol):
    """Runs batches, one after another; requests are named by their number in the trace."""

    @property
    def host_seconds(self) -> float:
        """CPU time between two steps, in which the device waits."""
        ...

    def run(self, batch: Batch) -> tuple[SampledTokens, float]:
        """The batch's tokens, and how long they took."""
        ...


class SimulatedDevice:
    """No device at all: lengths and a formula."""

    def __init__(self, requests: Sequence[TraceRequest], cost: Cost) -> None:
        self._rows = SimulatedRows(requests)
        self._cost = cost
        self.host_seconds = cost.coefficients.host

    def run(self, batch: Batch) -> tuple[SampledTokens, float]:
        return self._rows.forward(batch), self.seconds(shape_of(batch))

    def seconds(self, shape: StepShape) -> float:
        """A step that only reports outcomes takes no time."""
        if not (shape.extend_tokens or shape.decode_rows):
            return 0.0
        return self._cost.seconds(shape)
