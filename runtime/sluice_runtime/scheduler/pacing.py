"""What steps take, and what the next one may: the scheduler's sense of time.

Follows each batch from its making to its results, teaches the cost model how long it took, and asks
for the budget of the next. A step takes the time since the results before it, as its readers see
it, unless the engine rested between. Reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice_runtime.scheduler.batch import Batch, StepShape, shape_of
from sluice_runtime.scheduler.chunk_budget import ChunkBudget, StepView, chunk_choice
from sluice_runtime.scheduler.cost_model import CostModel
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.running import Running
from sluice_runtime.scheduler.settings import SchedulerSettings


class _PendingStep(NamedTuple):
    """A step that was made."""

    shape: StepShape
    made_seconds: float
    predicted_seconds: float


@dataclass(frozen=True, slots=True)
class PaceStatus:
    """For logs, metrics and the load report."""

    budget: ChunkBudget
    """Of the last step that might compute prompt tokens."""
    budgets: Mapping[str, int]
    """Steps since the start that computed prompt tokens, by the reason of their budget."""
    step_seconds: float
    """Of the last step that ended."""
    predicted_seconds: float
    """Of the same step, before it ran; 0 where nothing was known."""
    error_ratio: float
    """Mean relative error of the predictions."""
    token_seconds: float
    """Predicted time for a prompt token in steps like the last ones; 0 while unknown."""


class Pacing:
    """One engine's."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.cost = CostModel()
        self._mixed = settings.mixed
        self._choice = chunk_choice(settings, self.cost)
        self._budget = ChunkBudget(settings.chunk_size, "Idle", "there was no step yet")
        self._budgets: Counter[str] = Counter()
        self._in_flight: dict[int, _PendingStep] = {}
        self._last = _PendingStep(StepShape(), 0.0, 0.0)
        self._last_extend = StepShape()
        self._last_extend_seconds = 0.0
        self._step_seconds = 0.0
        self._landed_seconds: float | None = None
        """When the last results came in; None after a rest."""

    def budget(self, running: Running, prefilling: Request | None) -> ChunkBudget:
        """The budget of a step in which `running` decode and the prompt of `prefilling` goes on."""
        rows = running.ready_rows if self._mixed else 0
        view = StepView(
            decode_rows=rows,
            decode_context_tokens=running.context_tokens + rows if self._mixed else 0,
            computed_tokens=prefilling.computed_tokens if prefilling else 0,
        )
        return self._choice.budget(view)

    def launched(self, batch: Batch, budget: ChunkBudget | None, now: float) -> None:
        """A batch goes to the runner; `budget` is None if it could have no prompt tokens."""
        shape = shape_of(batch)
        self._budget = budget or self._budget
        self._budgets[self._budget.reason] += bool(shape.extend_tokens)
        self._in_flight[batch.step] = _PendingStep(shape, now, self.cost.seconds(shape))

    def landed(self, batch: Batch, now: float) -> None:
        """Its results are in."""
        self._last = self._in_flight.pop(batch.step)
        since = self._last.made_seconds if self._landed_seconds is None else self._landed_seconds
        self._landed_seconds, self._step_seconds = now, now - since
        if self._last.shape.extend_tokens:
            self._last_extend, self._last_extend_seconds = self._last.shape, self._step_seconds
        self.cost.observe(self._last.shape, self._step_seconds)
        self._choice.observe(self._last.shape)

    def rest(self) -> None:
        """There is nothing to do: what follows is no part of the next step."""
        self._landed_seconds = None

    def status(self) -> PaceStatus:
        return PaceStatus(
            budget=self._budget,
            budgets=dict(self._budgets),
            step_seconds=self._step_seconds,
            predicted_seconds=self._last.predicted_seconds,
            error_ratio=self.cost.error,
            token_seconds=self.token_seconds(),
        )

    def token_seconds(self) -> float:
        """Predicted time for a prompt token, 0 while unknown: the duration of a step like the last
        one that computed prompt tokens, by token; as the cost model predicts it, or as it was until
        there is enough data."""
        if not (tokens := self._last_extend.extend_tokens):
            return 0.0
        ready = self.cost.ready
        seconds = self.cost.seconds(self._last_extend) if ready else self._last_extend_seconds
        return seconds / tokens
