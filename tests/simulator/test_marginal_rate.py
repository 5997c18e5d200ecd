"""What the scheduler says prompts add to its steps, on devices of which that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from sluice_runtime.scheduler.batch import Batch, SampledTokens, StepShape, shape_of
from sluice_runtime.scheduler.settings import StepTarget
from sluice_simulator.costs import cost_named
from sluice_simulator.device import SimulatedDevice
from sluice_simulator.replay import Options, Replay
from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.synthetic import Workload, synthesise

from tests.simulator.simulating import settings

COST: Final = cost_named("h200-llama3-8b")
LATELY: Final = 200
"""Steps with prompts over which the scheduler averages, or so."""


class RecordingDevice(SimulatedDevice):
    """Keeps the shapes of the steps that computed prompts."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        super().__init__(requests, COST)
        self.shapes: list[StepShape] = []

    def run(self, batch: Batch) -> tuple[SampledTokens, float]:
        if batch.extend_rows:
            self.shapes.append(shape_of(batch))
        return super().run(batch)


def added_seconds(shape: StepShape) -> float:
    """By the prompts of a step."""
    without = StepShape(0, 0, shape.decode_rows, shape.decode_context_tokens)
    return COST.seconds(shape) - COST.seconds(without)


@pytest.mark.parametrize("target", [None, StepTarget(0.02, 0.95, 512)], ids=["fixed", "target"])
@pytest.mark.parametrize("rate", [6.0, 12.0])
def test_the_scheduler_measures_what_prompts_add_to_its_steps(
    rate: float, target: StepTarget | None
) -> None:
    trace = synthesise(Workload("mixed", 120, rate, (100, 3000), (20, 200)), 3)
    device = RecordingDevice(trace.requests)
    replay = Replay(trace, settings(target=target, chunk_size=512), device, Options())
    found = replay.run().status.pace.marginal_token_seconds
    lately = device.shapes[-LATELY:]
    added = sum(map(added_seconds, lately)) / sum(shape.extend_tokens for shape in lately)
    assert found == pytest.approx(added, rel=0.1)
