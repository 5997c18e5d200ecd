"""Measures step times and derives the token budget of the next step.

`Pacing` follows each batch to its results, tells the cost model how long the batch took, and asks
for the next budget. A step's duration counts from the previous results, as clients see it, unless
the engine was idle in between.

The budget is a fixed number or, with a target for the time between tokens, the most that keeps it.
The cost model says how many prompt tokens fit next to the decode rows. The budget stays small until
enough steps were measured, and never far exceeds the largest of them, because predictions do not
reach further. Budgets count decode rows too, as `chunkSize` does. If the target leaves too little
time for the smallest chunk, a larger chunk may be computed in groups of layers, one group a step,
provided that each step is then shorter. Reads no clock, knows no queue.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from sluice_contract.wire.load import StepCosts

from sluice_runtime.scheduler.batch import (
    Batch,
    StepShape,
    context_products,
    in_layers,
    shape_of,
)
from sluice_runtime.scheduler.cost_model import CostModel, steps_for
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import Running
from sluice_runtime.scheduler.settings import SchedulerSettings, StepTarget

LEARNING: Final = (1, 2, 4)
"""Divisors of the first budget, used in turn for the first steps. Steps of equal size would not
tell a token's cost from a step's fixed cost."""
GROWTH: Final = 2
"""Largest factor by which a step may exceed the largest step measured so far."""
MIN_GROUPS: Final = 8
"""Fewest layer groups of a split chunk. Together the groups read all weights once more, so each
step reads at most an eighth more."""
AIMED_MISSES: Final = 0.5
"""Fraction of the allowed misses that the budget aims at. Aiming at all of them would exceed the
allowance in half of all hours."""


@dataclass(frozen=True, slots=True)
class StepView:
    """Work of the next step besides new prompts."""

    decode_rows: int
    """Rows that decode in the step; 0 when batches are not mixed."""
    decode_context_tokens: int
    computed_tokens: int = 0
    """Tokens in the pool of the prompt that is continued, or that starts after a cached prefix."""


class LayerSplit(NamedTuple):
    """A chunk in groups of layers, one a step."""

    tokens: int
    """Tokens of the chunk, in whole pages."""
    layers: int
    """Layers of a group."""
    fits: int = 0
    """Prompt tokens for which a step of all layers keeps the target, though less than a page."""


@dataclass(frozen=True, slots=True)
class ChunkBudget:
    """Token budget of a step, decode rows included; `tokens` None: no limit. `reason` is stable,
    `message` for a person."""

    tokens: int | None
    reason: str
    message: str
    beginning_weight: float = 1.0
    """Budget that each token at the beginning of a prompt takes; a token of the continued prompt
    takes 1."""
    split: LayerSplit | None = None
    """Layer split that a prompt may use instead of `tokens`, if it is alone in the step."""


@dataclass(frozen=True, slots=True)
class PaceStatus:
    """State of the pacing, for logs, metrics and the load report."""

    budget: ChunkBudget
    """Budget of the last step that might compute prompt tokens."""
    budgets: Mapping[str, int]
    """Count of steps since the start that computed prompt tokens, by the reason of their budget."""
    step_seconds: float
    """Duration of the last step that ended."""
    predicted_seconds: float
    """Duration predicted for the last step before it ran; 0 without a prediction."""
    error_ratio: float
    """Mean relative error of the predictions."""
    token_seconds: float
    """Predicted time for a prompt token in steps like the last ones; 0 while unknown."""
    marginal_token_seconds: float | None
    """Seconds that a prompt token adds to a step that decodes anyway; None while unknown."""
    costs: StepCosts | None
    """What the cost model has learnt, for comparisons with other engines; None while unknown."""


class _PendingStep(NamedTuple):
    """A step without results yet."""

    shape: StepShape
    made_seconds: float
    predicted_seconds: float


class Pacing:
    """Times and budgets of one engine's steps."""

    def __init__(self, settings: SchedulerSettings) -> None:
        target = settings.target
        self.cost = CostModel() if target is None else CostModel(steps_for(_aimed_share(target)))
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
        """Time at which the last results came in; None after a rest."""

    def budget(self, running: Running, prefilling: Request | None) -> ChunkBudget:
        """The budget of a step in which `running` decode and the prompt of `prefilling` is
        continued."""
        return self.budget_behind(running, prefilling.computed_tokens if prefilling else 0)

    def budget_behind(self, running: Running, computed_tokens: int) -> ChunkBudget:
        """The budget for a prompt of which `computed_tokens` tokens are in the pool."""
        rows = running.ready_rows if self._mixed else 0
        view = StepView(
            decode_rows=rows,
            decode_context_tokens=running.context_tokens + rows if self._mixed else 0,
            computed_tokens=computed_tokens,
        )
        return self._choice.budget(view)

    def launched(self, batch: Batch, budget: ChunkBudget | None, now: float) -> None:
        """Records a batch that goes to the runner. `budget` is None if it could have no prompt
        tokens."""
        shape = shape_of(batch)
        self._budget = budget or self._budget
        self._budgets[self._budget.reason] += bool(shape.extend_tokens)
        predicted = 0.0 if batch.verify_rows else self.cost.seconds(shape)
        self._in_flight[batch.step] = _PendingStep(shape, now, predicted)

    def landed(self, batch: Batch, now: float) -> None:
        """Records the duration of a batch whose results have arrived."""
        self._last = self._in_flight.pop(batch.step)
        since = self._last.made_seconds if self._landed_seconds is None else self._landed_seconds
        self._landed_seconds, self._step_seconds = now, now - since
        if self._last.shape.extend_tokens:
            self._last_extend, self._last_extend_seconds = self._last.shape, self._step_seconds
        if not batch.verify_rows:  # a draft is neither a prompt token nor a decode row
            self.cost.observe(self._last.shape, self._step_seconds)
        self._choice.observe(self._last.shape)

    def rest(self) -> None:
        """Records that the engine is idle, so that the time from now on does not count for the next
        step."""
        self._landed_seconds = None

    @property
    def step_seconds(self) -> float:
        """Duration of the last step that ended."""
        return self._step_seconds

    def status(self) -> PaceStatus:
        return PaceStatus(
            budget=self._budget,
            budgets=dict(self._budgets),
            step_seconds=self._step_seconds,
            predicted_seconds=self._last.predicted_seconds,
            error_ratio=self.cost.error,
            token_seconds=self.token_seconds(),
            marginal_token_seconds=self.cost.marginal_token_seconds(),
            costs=self.cost.costs(),
        )

    def token_seconds(self) -> float:
        """Predicted seconds for a prompt token: the duration of the last step with prompt tokens,
        divided by their number; 0 while unknown. The cost model gives that duration; while it has
        too little data, the measurement does."""
        if not (tokens := self._last_extend.extend_tokens):
            return 0.0
        ready = self.cost.ready
        seconds = self.cost.seconds(self._last_extend) if ready else self._last_extend_seconds
        return seconds / tokens


class ChunkChoice(Protocol):
    """Chooses the budget of each step that may compute prompt tokens."""

    def budget(self, view: StepView) -> ChunkBudget: ...
    def observe(self, shape: StepShape) -> None:
        """Called for each finished step, once the cost model has learnt from it."""
        ...


class FixedChunk:
    """`chunkSize`, however long a step takes."""

    def __init__(self, tokens: int | None) -> None:
        message = "chunking is off" if tokens is None else f"chunkSize is {tokens} tokens"
        self._budget = ChunkBudget(tokens, "Fixed", message)

    def budget(self, view: StepView) -> ChunkBudget:
        del view
        return self._budget

    def observe(self, shape: StepShape) -> None:
        """Does nothing: the budget is fixed."""


class TargetChunk:
    """The largest budget whose predicted step keeps the target, up to `chunkSize`."""

    def __init__(self, settings: SchedulerSettings, target: StepTarget, cost: CostModel) -> None:
        assert settings.chunk_size is not None, "a target needs chunking"
        self._most = settings.chunk_size
        self._least = max(settings.min_prefill_tokens, settings.page_size)
        self._page_size = settings.page_size
        self._target = target
        self._cost = cost
        self._share = _aimed_share(target)
        self._layers = settings.layers
        self._seen = max(self._least, min(target.start_tokens, self._most))
        """Prompt tokens of the largest step so far, at least those of the first that is tried."""
        self._extends = 0

    def observe(self, shape: StepShape) -> None:
        self._seen = max(self._seen, int(shape.extend_tokens))
        self._extends += bool(shape.extend_tokens)

    def budget(self, view: StepView) -> ChunkBudget:
        """The budget, never below the minimum share of prefill, so that long prompts always
        progress."""
        if not self._cost.ready:
            tokens = self._seen // LEARNING[self._extends % len(LEARNING)]
            return self._of(tokens, view, "Learning", "too few steps have been seen")
        if not view.decode_rows:
            return self._of(self._within_seen(), view, "NothingDecodes", "no answer waits for it")
        fits = self._fitting(view)
        if fits < self._least:
            message = "the target leaves less than prefill's share"
            least = self._of(fits, view, "LeastShare", message)
            return replace(least, split=self._split(view))
        if fits > (reach := self._within_seen()):
            return self._of(reach, view, "Growing", "twice the largest step that has been seen")
        target = self._of(fits, view, "Target", self._explained(view, fits))
        return replace(target, beginning_weight=self._beginning_weight(view, fits))

    def _within_seen(self) -> int:
        return self._seen * GROWTH

    def _fitting(self, view: StepView) -> int:
        """Prompt tokens for which the predicted step has time: the root of a quadratic, because
        each token also attends to earlier ones of the chunk."""
        return self._tokens_within(self._left(view), view)

    def _left(self, view: StepView) -> float:
        """Predicted seconds of the target that the decode rows leave for prompts."""
        base = self._cost.seconds(_decode_shape(view))
        return self._target.seconds / self._cost.slack(self._share) - base

    def _tokens_within(self, seconds: float, view: StepView) -> int:
        if seconds <= 0:
            return 0
        _, token, product, _, _ = self._cost.coefficients
        linear = token + product * (view.computed_tokens + 0.5)
        root = linear + math.sqrt(linear * linear + 2 * product * seconds)
        return int(2 * seconds / root) if root > 2 * seconds / self._most else self._most

    def _split(self, view: StepView) -> LayerSplit | None:
        """The largest chunk whose groups of layers keep the target, each in a step with the decode
        rows. Groups of one layer are used even if they miss the target. None if the decode rows use
        up the target, or if the smallest chunk takes no longer unsplit."""
        left = self._left(view)
        if self._layers == 1 or left <= 0:
            return None
        decode = _decode_shape(view)
        smallest = self._with_prompt(view, self._least)
        of_layer = self._cost.seconds(in_layers(smallest, 1 / self._layers))
        of_layer -= self._cost.seconds(decode)
        most = max(1, self._layers // MIN_GROUPS)
        layers = min(most, max(1, int(left / of_layer)))
        step, *_ = self._cost.coefficients
        fits = self._tokens_within(left * self._layers / layers - step, view)
        fits = max(self._least, min(fits, self._within_seen(), self._most - view.decode_rows))
        tokens = fits // self._page_size * self._page_size
        split = in_layers(self._with_prompt(view, tokens), layers / self._layers)
        if self._cost.seconds(split) >= self._cost.seconds(smallest):
            return None
        return LayerSplit(tokens, layers, self._tokens_within(left, view))

    def _with_prompt(self, view: StepView, tokens: int) -> StepShape:
        products = context_products(view.computed_tokens, tokens)
        return _decode_shape(view)._replace(extend_tokens=tokens, extend_context_products=products)

    def _beginning_weight(self, view: StepView, tokens: int) -> float:
        """Cost of a token at the prompt's beginning relative to one at its continuation, which
        attends to more tokens."""
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


def _decode_shape(view: StepView) -> StepShape:
    return StepShape(decode_rows=view.decode_rows, decode_context_tokens=view.decode_context_tokens)


def _aimed_share(target: StepTarget) -> float:
    """Fraction of steps that should keep the target, as the budget aims."""
    return 1 - (1 - target.share) * AIMED_MISSES


def chunk_choice(settings: SchedulerSettings, cost: CostModel) -> ChunkChoice:
    """The choice of budgets for these settings."""
    if settings.target is None:
        return FixedChunk(settings.chunk_size)
    return TargetChunk(settings, settings.target, cost)
