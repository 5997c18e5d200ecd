"""Measures step times and derives the token budget of the next step.

`Pacing` follows each batch from its making to its results, teaches the cost model how long it took,
and asks for the next budget. A step takes the time since the results before it, as its readers see
it, unless the engine rested between.

The budget is a fixed number, or with a target for the time between tokens the most that keeps it.
The cost model says how many prompt tokens fit with the rows that decode. Until it has seen enough
steps the budget stays small, and it never goes far beyond what was seen: no prediction reaches that
far. Budgets count the decode rows too, as `chunkSize` does. Where the target has no time for the
smallest chunk, a larger one may be computed in groups of layers, one a step, if that takes each
step less. Reads no clock, knows no queue.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

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
"""Divisors of the first budget, one for each of the first steps in turn. Steps of one size would
not show what a token costs and what a step."""
GROWTH: Final = 2
"""Factor: a step may be so many times as large as the largest that was seen."""
MIN_GROUPS: Final = 8
"""Minimum groups of a chunk that is split. The groups read all weights once more, which costs each
step an eighth of that at most."""
AIMED_MISSES: Final = 0.5
"""Share of the allowed misses to aim at. Aiming at all of them would give too many every other
hour."""


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
    """Tokens that keep the target in a step of all layers: less than a page."""


@dataclass(frozen=True, slots=True)
class ChunkBudget:
    """Token budget of a step, decode rows included; `tokens` None: no limit. `reason` is stable,
    `message` for a person."""

    tokens: int | None
    reason: str
    message: str
    beginning_weight: float = 1.0
    """Budget that a token at the beginning of a prompt takes; one of the continued prompt takes
    1."""
    split: LayerSplit | None = None
    """Layer split that a prompt may have instead, if no other joins the step."""


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
    """Prediction for that step, before it ran; 0 where nothing was known."""
    error_ratio: float
    """Mean relative error of the predictions."""
    token_seconds: float
    """Predicted time for a prompt token in steps like the last ones; 0 while unknown."""
    marginal_token_seconds: float | None
    """Seconds that a prompt token adds to a step that decodes anyway; None while unknown."""


class _PendingStep(NamedTuple):
    """A step that was made and whose results are not in."""

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
        """The budget for a prompt of which so many tokens are in the pool."""
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
        """Takes the duration of a batch whose results are in."""
        self._last = self._in_flight.pop(batch.step)
        since = self._last.made_seconds if self._landed_seconds is None else self._landed_seconds
        self._landed_seconds, self._step_seconds = now, now - since
        if self._last.shape.extend_tokens:
            self._last_extend, self._last_extend_seconds = self._last.shape, self._step_seconds
        if not batch.verify_rows:  # a draft is neither a prompt token nor a decode row
            self.cost.observe(self._last.shape, self._step_seconds)
        self._choice.observe(self._last.shape)

    def rest(self) -> None:
        """Notes that there is nothing to do: the time from here is no part of the next step."""
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
        )

    def token_seconds(self) -> float:
        """Predicted time for a prompt token, 0 while unknown: the duration of the last step with
        prompt tokens, divided by them. The cost model predicts that duration; until there is enough
        data it is the measured one."""
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
        """Prompt tokens that the predicted step has time for. This is the root of a quadratic: each
        token also attends to those before it in the chunk."""
        return self._tokens_within(self._left(view), view)

    def _left(self, view: StepView) -> float:
        """Seconds of the target that the decode rows leave, predicted."""
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
        """The most tokens whose groups of layers keep the target, each together with the decode
        rows. Groups of one layer are used even if they miss it. None where nothing is left of the
        target, or the smallest chunk takes the step no longer."""
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
    """Share of the steps to aim at keeping the target."""
    return 1 - (1 - target.share) * AIMED_MISSES


def chunk_choice(settings: SchedulerSettings, cost: CostModel) -> ChunkChoice:
    """The choice of budgets for these settings."""
    if settings.target is None:
        return FixedChunk(settings.chunk_size)
    return TargetChunk(settings, settings.target, cost)
