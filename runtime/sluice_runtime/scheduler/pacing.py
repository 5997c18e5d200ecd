"""What steps take, and what the next one may: the scheduler's sense of time.

Follows each batch from its making to its results, teaches the cost model how long it took, and asks
for the budget of the next. A step takes the time since the results before it, as its readers see
it, unless the engine rested between. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.chunk_budget import ChunkBudget, StepView, chunk_choice
from sluice_runtime.scheduler.cost_model import CostModel
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.step_shape import StepShape, context_products, shape_of


@dataclass(frozen=True, slots=True)
class PaceStatus:
    """For logs, metrics and the load report."""

    budget: ChunkBudget
    """Of the last step that might compute prompt tokens."""
    predicted_seconds: float
    """Of the last step that was made; 0 while unknown."""
    error_ratio: float
    """Mean relative error of the predictions."""
    ready: bool


class Pacing:
    """One engine's."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.cost = CostModel()
        self._mixed = settings.mixed
        self._choice = chunk_choice(settings, self.cost)
        self._budget = ChunkBudget(settings.chunk_size, "Idle", "there was no step yet")
        self._in_flight: dict[int, tuple[StepShape, float]] = {}
        self._predicted_seconds = 0.0
        self._landed_seconds: float | None = None
        """When the last results came in; None after a rest."""

    def budget(self, running: Collection[Request], prefilling: Request | None) -> ChunkBudget:
        """Of the step in which these decode and go on."""
        decodes = running if self._mixed else ()
        view = StepView(
            decode_rows=len(decodes),
            decode_context_tokens=sum([r.computed_tokens for r in decodes]) + len(decodes),
            computed_tokens=prefilling.computed_tokens if prefilling else 0,
        )
        self._budget = self._choice.budget(view)
        return self._budget

    def made(self, batch: Batch, now: float) -> None:
        """A batch leaves for the runner."""
        shape = shape_of(batch)
        self._predicted_seconds = self.cost.seconds(shape)
        self._in_flight[batch.step] = (shape, now)

    def landed(self, batch: Batch, now: float) -> None:
        """Its results are in."""
        shape, began = self._in_flight.pop(batch.step)
        since = began if self._landed_seconds is None else self._landed_seconds
        self._landed_seconds = now
        self.cost.observe(shape, now - since)
        self._choice.observe(shape)

    def rest(self) -> None:
        """There is nothing to do: what follows is no part of the next step."""
        self._landed_seconds = None

    def work_seconds(self, tokens: int, running: Collection[Request]) -> float | None:
        """Predicted time to compute so many prompt tokens beside what runs, in steps of the
        present budget; None while unknown."""
        if not self.cost.ready:
            return None
        rows, context = len(running), sum([r.computed_tokens for r in running])
        chunk = max(1, min(tokens, (self._budget.tokens or tokens) - rows))
        step = self.cost.seconds(StepShape(chunk, context_products(0, chunk), rows, context))
        return step * tokens / chunk

    def status(self) -> PaceStatus:
        return PaceStatus(self._budget, self._predicted_seconds, self.cost.error, self.cost.ready)
