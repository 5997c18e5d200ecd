"""How many tokens the next step may compute: a fixed number, or the most that keeps a promise.

With a target for the time between tokens, a step may take no longer than that. The cost model says
how many prompt tokens fit beside the rows that decode. Until it has seen enough steps the budget
stays small, and it never goes far beyond what has been seen, as no prediction reaches there.
Budgets count the decode rows too, as `chunkSize` does. Knows no clock and no queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sluice_runtime.scheduler.batch import StepShape
from sluice_runtime.scheduler.cost_model import CostModel
from sluice_runtime.scheduler.settings import SchedulerSettings, StepTarget

LEARNING: Final = (1, 2, 4)
"""The first steps have these parts of the first budget in turn: from steps of one size nobody can
tell what a token costs and what a step."""
GROWTH: Final = 2
"""A step may be so many times the largest that was seen."""
AIMED_MISSES: Final = 0.5
"""Of the misses that the target allows: as many as it does would be too many every other hour."""


@dataclass(frozen=True, slots=True)
class StepView:
    """What will share the next step."""

    decode_rows: int
    """0 when batches are not mixed."""
    decode_context_tokens: int
    computed_tokens: int = 0
    """Of the prompt that goes on; 0 when a new one starts."""


@dataclass(frozen=True, slots=True)
class ChunkBudget:
    """`tokens`: of the step, decode rows included; None: no limit. `reason` is stable, `message`
    for a person."""

    tokens: int | None
    reason: str
    message: str
    beginning_weight: float = 1.0
    """What a token at the beginning of a prompt takes of it, beside the prompt that goes on."""


class ChunkChoice(Protocol):
    """Chooses the budget of each step that may compute prompt tokens."""

    def budget(self, view: StepView) -> ChunkBudget: ...
    def observe(self, shape: StepShape) -> None:
        """To be told of each finished step, once the cost model has learnt from it."""
        ...


class FixedChunk:
    """`chunkSize`, whatever it takes."""

    def __init__(self, tokens: int | None) -> None:
        message = "chunking is off" if tokens is None else f"chunkSize is {tokens} tokens"
        self._budget = ChunkBudget(tokens, "Fixed", message)

    def budget(self, view: StepView) -> ChunkBudget:
        del view
        return self._budget

    def observe(self, shape: StepShape) -> None:
        """Learns nothing."""


class TargetChunk:
    """The largest budget whose predicted step keeps the target, up to `chunkSize`."""

    def __init__(self, settings: SchedulerSettings, target: StepTarget, cost: CostModel) -> None:
        assert settings.chunk_size is not None, "a target needs chunking"
        self._most = settings.chunk_size
        self._least = max(settings.min_prefill_tokens, settings.page_size)
        self._page_size = settings.page_size
        self._target = target
        self._cost = cost
        self._share = 1 - (1 - target.share) * AIMED_MISSES
        self._seen = max(self._least, min(target.start_tokens, self._most))
        """The largest step there was with prompt tokens, or the first that is tried."""
        self._extends = 0

    def observe(self, shape: StepShape) -> None:
        self._seen = max(self._seen, shape.extend_tokens)
        self._extends += bool(shape.extend_tokens)

    def budget(self, view: StepView) -> ChunkBudget:
        """Never under the least share of prefill, which keeps long prompts moving."""
        if not self._cost.ready:
            tokens = self._seen // LEARNING[self._extends % len(LEARNING)]
            return self._of(tokens, view, "Learning", "too few steps have been seen")
        if not view.decode_rows:
            return self._of(self._within_seen(), view, "NothingDecodes", "no answer waits for it")
        fits = self._fitting(view)
        if fits < self._least:
            return self._of(fits, view, "LeastShare", "the target leaves less than prefill's share")
        if fits > (reach := self._within_seen()):
            return self._of(reach, view, "Growing", "twice the largest step that has been seen")
        target = self._of(fits, view, "Target", self._explained(view, fits))
        return replace(target, beginning_weight=self._beginning_weight(view, fits))

    def _within_seen(self) -> int:
        return self._seen * GROWTH

    def _fitting(self, view: StepView) -> int:
        """Prompt tokens that the predicted step has time for: the root of a quadratic, since each
        token also attends to those of the chunk before it."""
        step, token, product, row, context = self._cost.coefficients
        base = step + row * view.decode_rows + context * view.decode_context_tokens
        left = self._target.seconds / self._cost.slack(self._share) - base
        if left <= 0:
            return 0
        linear = token + product * (view.computed_tokens + 0.5)
        root = linear + math.sqrt(linear * linear + 2 * product * left)
        return int(2 * left / root) if root > 2 * left / self._most else self._most

    def _beginning_weight(self, view: StepView, tokens: int) -> float:
        """A token costs itself and the tokens that it attends to."""
        _, token, product, _, _ = self._cost.coefficients
        beginning = token + product * tokens / 2
        going_on = beginning + product * view.computed_tokens
        return beginning / going_on if going_on else 1.0

    def _explained(self, view: StepView, tokens: int) -> str:
        slack = self._cost.slack(self._share)
        return (
            f"{tokens} prompt tokens beside {view.decode_rows} rows fit "
            f"{1000 * self._target.seconds:.0f} ms, with steps up to {slack:.2f} times predicted"
        )

    def _of(self, prompt_tokens: int, view: StepView, reason: str, message: str) -> ChunkBudget:
        pages = max(prompt_tokens, self._least) // self._page_size
        tokens = pages * self._page_size + view.decode_rows
        if tokens >= self._most:
            return ChunkBudget(self._most, "ChunkSize", f"at most chunkSize ({self._most})")
        return ChunkBudget(tokens, reason, message)


def chunk_choice(settings: SchedulerSettings, cost: CostModel) -> ChunkChoice:
    """The choice that the settings ask for."""
    if settings.target is None:
        return FixedChunk(settings.chunk_size)
    return TargetChunk(settings, settings.target, cost)
