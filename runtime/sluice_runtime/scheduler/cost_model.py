"""Predicts how long a step takes, learnt from earlier steps.

    seconds = step + token x prompt tokens + product x context products
            + row x decode rows + context x decode context

The five coefficients are not negative. They are fitted by least squares of the relative error, with
forgetting: each new step lowers the weight of earlier steps of its kind. Steps with and without
prompt tokens are forgotten separately, so that an hour of decoding does not erase what prompts
cost.

The time that prompts add to a step is measured too: its duration less the duration predicted for
the step without prompts. It is less than the prompts' own computation, because part of that
overlaps with reading the weights, which decoding alone needs too.

The duration of an outlier is cut to the edge of what is likely. After several successive outliers
on one side the machine counts as changed, and all coefficients are scaled.

`Residuals` remembers how far steps were from their prediction, for promises about a share of the
steps.

Pure Python, some 15 microseconds a step. Knows no clock, no request and no device.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from statistics import NormalDist
from typing import Final, NamedTuple

from sluice_contract.wire.load import Amounts, StepCosts, StepShapes

from sluice_runtime.scheduler.batch import StepShape

SIZE: Final = 5
PAIRS: Final = [(i, j) for i in range(SIZE) for j in range(i, SIZE)]
"""Row and column of each entry of the upper triangle, which determines a symmetric matrix."""
ROWS: Final = [
    itemgetter(*(PAIRS.index((min(i, j), max(i, j))) for j in range(SIZE))) for i in range(SIZE)
]
"""Getters, one for each row, that read a whole row from such a triangle."""
FORGETTING: Final = 0.99
"""Decay per step of its kind: a step counts for a third after a hundred more."""
SWEEPS: Final = 6
"""Passes of coordinate descent in each step, which start from the previous step's result."""
FORGOTTEN: Final = 1e-200
"""Weight of evidence below which it is so old that rounding would lose it; the coefficient then
stays unchanged."""
ENOUGH_EXTENDS: Final = 8
SETTLED_DECODES: Final = 32
"""Steps without prompt tokens that show what a step costs without them."""
SETTLED_EXTENDS: Final = 32
"""Steps with prompt tokens after which an error counts as the step's fault, not the model's."""
LIKELY_ERRORS: Final = 4.0
"""Multiple of the mean error beyond which a step is an outlier."""
LEAST_ERROR: Final = 0.05
CHANGE_STEPS: Final = 6
"""Number of consecutive outliers on one side after which the machine counts as changed."""
STEPS: Final = 400
"""Fewest steps that are remembered."""
HICCUP: Final = 2.0
"""Ratio of observed to predicted time from which the machine counts as having paused: a smaller
step would not have helped."""
LEAST_STEPS: Final = 3.8
"""Number of steps, with decay, that a `StepTime` needs before it predicts."""
LEAST_SPREAD: Final = 1e-6
"""Minimum variance over squared mean that counts as steps of different sizes."""
LINE_FORGETTING: Final = 0.98
"""Decay per step: a step counts for a third after some fifty more."""
LAG_LEARNING: Final = 0.15
"""Weight of one observation of a draft model catching up."""
FIRMNESS: Final = 1e-3
"""Ridge term as a share of the spread, so that prices which the steps hardly distinguish stay
nearly unchanged."""
PRIOR_STEPS: Final = 8
PRIOR_SPREAD: Final = 0.05
"""Prior before there is data: PRIOR_STEPS steps with PRIOR_SPREAD around their prediction."""


class _Step(NamedTuple):
    """Deviation of a step from its prediction."""

    ratio: float
    """Observed over predicted."""
    mixed: bool


class CostModel:
    """Predicts the duration of a step from its shape."""

    def __init__(self, remembered_steps: int = STEPS) -> None:
        """`remembered_steps`: see `Residuals`."""
        self._extending, self._decoding = _Evidence(), _Evidence()
        self._groups = _Evidence()
        """Evidence from steps with a group of layers: they show what prompts cost, and nothing
        else."""
        self._coefficients = [0.0] * SIZE
        self._extends = self._decodes = 0
        self._prompt_tokens = self._prompt_seconds = 0.0
        """Prompt tokens of the last steps, and the seconds that they added; both decay like
        evidence."""
        self._error = LEAST_ERROR
        self._outliers: list[_Step] = []
        """Unlikely steps since the last likely one; all on one side."""
        self._residuals = Residuals(remembered_steps)
        """Residuals of mixed steps, which decode rows wait for."""

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds: a step, a prompt token, a product, a decode row, a token of decode context."""
        return tuple(self._coefficients)

    def costs(self) -> StepCosts | None:
        """The coefficients, with the mean shapes of the steps that they were learnt from; None
        before there are enough steps of any kind."""
        decode = self._decoding.shapes(self._decodes, SETTLED_DECODES)
        prefill = self._extending.shapes(self._extends, SETTLED_EXTENDS)
        if decode is None and prefill is None:
            return None
        return StepCosts(seconds=_amounts(self._coefficients), decode=decode, prefill=prefill)

    @property
    def ready(self) -> bool:
        """Whether there is enough data to predict steps with prompt tokens."""
        return self._extends >= ENOUGH_EXTENDS

    @property
    def error(self) -> float:
        """Mean relative error of the last predictions."""
        return self._error

    def seconds(self, shape: StepShape) -> float:
        """Predicted duration; 0 for an empty step and before there is any data."""
        if not (shape.extend_tokens or shape.decode_rows):
            return 0.0
        _, token, product, _, _ = self._coefficients
        prompts = token * shape.extend_tokens + product * shape.extend_context_products
        return self._without_prompts(shape) + prompts

    def _without_prompts(self, shape: StepShape) -> float:
        """Predicted duration of the step without its prompts, but with as many reads of the
        weights."""
        step, _, _, row, context = self._coefficients
        return step * shape.passes + row * shape.decode_rows + context * shape.decode_context_tokens

    def marginal_token_seconds(self) -> float | None:
        """Seconds that a prompt token has lately added to a step that decodes anyway; may be 0 if
        prompts overlap with reading the weights. None before there is enough data of both kinds of
        steps."""
        if not self._prompt_tokens:
            return None
        return max(0.0, self._prompt_seconds) / self._prompt_tokens

    def slack(self, share: float) -> float:
        """Bound on observed over predicted seconds that a mixed step keeps with probability
        `share`."""
        return self._residuals.bound(share)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learns from the duration of a step."""
        if seconds <= 0 or not (shape.extend_tokens or shape.decode_rows):
            return
        likely = scale = seconds
        if self.ready and (predicted := self.seconds(shape)) > 0:
            mixed = bool(shape.extend_tokens and shape.decode_rows)
            likely, scale = self._judged(seconds, predicted, mixed), predicted
        if shape.passes == 1:
            evidence = self._extending if shape.extend_tokens else self._decoding
            evidence.add(shape.features, likely, scale)
            self._extends += bool(shape.extend_tokens)
        else:
            # With hardly changing rows, a group's effect is too small to be distinguished from
            # errors.
            prompts = (0.0, shape.extend_tokens, shape.extend_context_products, 0.0, 0.0)
            rest = self._without_prompts(shape)
            self._groups.add(prompts, max(0.0, likely - rest), scale)
        self._decodes += not shape.extend_tokens
        self._solve()
        if shape.extend_tokens:
            self._measure_prompts(shape, min(seconds, HICCUP * scale))

    def _measure_prompts(self, shape: StepShape, seconds: float) -> None:
        """Records what the prompts of a step that took `seconds` added to it, if the rest can be
        predicted."""
        if self._extends < SETTLED_EXTENDS or self._decodes < SETTLED_DECODES:
            return
        added = seconds - self._without_prompts(shape._replace(passes=1))
        self._prompt_tokens = self._prompt_tokens * FORGETTING + shape.extend_tokens
        self._prompt_seconds = self._prompt_seconds * FORGETTING + added

    def _judged(self, seconds: float, predicted: float, mixed: bool) -> float:
        """The duration to learn from: the measured one, cut if it is an outlier."""
        step = _Step(seconds / predicted, mixed)
        likely = 1 + max(self._error, LEAST_ERROR) * LIKELY_ERRORS
        bounded = min(max(step.ratio, 1 / likely), likely)
        self._error += 0.02 * (abs(bounded - 1) - self._error)
        if self._outliers and (self._outliers[-1].ratio > 1) != (step.ratio > 1):
            self._remember(self._outliers)
        if bounded == step.ratio:
            self._remember(self._outliers)
            self._remember([step])
            return seconds
        self._outliers.append(step)
        if len(self._outliers) < CHANGE_STEPS:
            return bounded * predicted
        logarithms = [math.log(outlier.ratio) for outlier in self._outliers]
        self._rescale(math.exp(sum(logarithms) / CHANGE_STEPS))
        return seconds

    def _remember(self, steps: list[_Step]) -> None:
        """Adds to the residuals outliers that were not a change of the machine, because they may
        recur."""
        for step in steps:
            if step.mixed and self._extends >= SETTLED_EXTENDS:
                self._residuals.add(step.ratio)
        steps.clear()

    def _rescale(self, factor: float) -> None:
        """Scales everything learnt by `factor`, by which the machine became slower."""
        for evidence in (self._extending, self._decoding, self._groups):
            evidence.answers = [answer * factor for answer in evidence.answers]
        self._coefficients = [coefficient * factor for coefficient in self._coefficients]
        self._residuals.rescale(factor)
        self._outliers.clear()

    def _solve(self) -> None:
        """Least squares without negative coefficients, by coordinate descent."""
        gram = list(map(add, self._extending.gram, self._decoding.gram))
        answers = list(map(add, self._extending.answers, self._decoding.answers))
        if self._groups.used:
            gram = list(map(add, gram, self._groups.gram))
            answers = list(map(add, answers, self._groups.answers))
        rows = [pick(gram) for pick in ROWS]
        equations = [
            (i, row, row[i], answer)
            for i, (row, answer) in enumerate(zip(rows, answers, strict=True))
            if row[i] > FORGOTTEN
        ]
        coefficients = self._coefficients
        for _ in range(SWEEPS):
            for i, (a, b, c, d, e), own, answer in equations:
                step, token, product, decode, context = coefficients
                fitted = a * step + b * token + c * product + d * decode + e * context
                better = coefficients[i] + (answer - fitted) / own
                coefficients[i] = better if better > 0.0 else 0.0


class _Evidence:
    """Normal equations of one kind of step: `gram` x coefficients = `answers`."""

    def __init__(self) -> None:
        self.gram = [0.0] * len(PAIRS)
        """Entries at PAIRS; the matrix is symmetric."""
        self.answers = [0.0] * SIZE
        self.used = False

    def shapes(self, steps: int, settled: int) -> StepShapes | None:
        """The mean shape of these steps; None before `settled` steps."""
        if steps < settled or self.gram[0] <= FORGOTTEN:
            return None
        first = [entry / self.gram[0] for entry in self.gram[:SIZE]]
        return StepShapes(steps=steps, mean=_amounts(first))

    def add(self, features: tuple[float, ...], seconds: float, scale: float) -> None:
        """Adds one step, weighted so that its relative error counts."""
        self.used = True
        weight = 1.0 / (scale * scale)
        weighted = [weight * feature for feature in features]
        self.gram = [
            old * FORGETTING + weighted[i] * features[j]
            for old, (i, j) in zip(self.gram, PAIRS, strict=True)
        ]
        self.answers = [
            old * FORGETTING + new * seconds
            for old, new in zip(self.answers, weighted, strict=True)
        ]


def _amounts(values: Sequence[float]) -> Amounts:
    """The values with four digits, which is more than a measurement has: reports stay small."""
    step, token, product, row, context = (float(f"{value:.4g}") for value in values)
    return step, token, product, row, context


def steps_for(share: float) -> int:
    """Number of steps needed to determine the bound of `share`: on average two of them exceed
    it."""
    return max(STEPS, round(2 / (1 - share)))


class Residuals:
    """Observed over predicted seconds of the last steps.

    The bound for a share of the steps is an order statistic. It is chosen so that the next step
    exceeds it no more often than allowed, whatever the distribution: machines have a few per cent
    of slow steps, unlike a normal distribution. With too few steps for a share, the bound is the
    larger of the largest step and a bound from mean and spread. From 400 steps on it is the largest
    step alone, since mean and spread of thousands take long to compute.
    """

    def __init__(self, remembered_steps: int = STEPS) -> None:
        self._remembered_steps = remembered_steps
        self._ratios: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, ratio: float) -> None:
        """Adds one step, unless the machine paused in it, which says nothing about later steps."""
        if ratio >= HICCUP:
            return
        if len(self._ratios) == self._remembered_steps:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft())]
        self._ratios.append(ratio)
        insort(self._sorted, ratio)

    def rescale(self, factor: float) -> None:
        """Divides earlier steps' ratios by `factor`, because predictions are longer by it from now
        on."""
        ratios = [ratio / factor for ratio in self._ratios]
        self._ratios.clear()
        self._sorted.clear()
        for ratio in ratios:
            self.add(ratio)

    def bound(self, share: float) -> float:
        """Bound under which the next step stays with probability `share`."""
        steps = len(self._sorted)
        over = int((1 - share) * (steps + 1))
        if over:
            return self._sorted[-over]
        if steps >= STEPS:
            return self._sorted[-1]
        return max([self._normal_bound(share), *self._sorted[-1:]])

    def _normal_bound(self, share: float) -> float:
        """Bound from the mean and the spread, the prior's steps included."""
        steps = PRIOR_STEPS + len(self._sorted)
        mean = (PRIOR_STEPS + sum(self._sorted)) / steps
        squares = PRIOR_STEPS * (PRIOR_SPREAD**2 + (1 - mean) ** 2)
        squares += sum([(ratio - mean) ** 2 for ratio in self._sorted])
        return mean + NormalDist().inv_cdf(share) * math.sqrt(squares / steps)


class StepTime:
    """Predicts seconds of steps without prompts from their tokens and a draft model's passes, by
    least squares with forgetting. A price that recent steps do not show stays unchanged."""

    def __init__(self) -> None:
        self._sums = [0.0] * 9
        """Decayed sums over steps: count, tokens, passes, seconds; then products of two of these
        without the count."""
        self.token_seconds = self._pass_seconds = 0.0
        self.known = False
        """Whether steps of different sizes were seen."""
        self._passes_known = False

    def observe(self, tokens: int, passes: int, seconds: float) -> None:
        """Learns from the duration of a step with `tokens` tokens and `passes` passes."""
        pairs = tokens * tokens, tokens * passes, passes * passes, tokens * seconds
        new = (1.0, tokens, passes, seconds, *pairs, passes * seconds)
        self._sums = [old * LINE_FORGETTING + add for old, add in zip(self._sums, new, strict=True)]
        if self._sums[0] >= LEAST_STEPS:
            self._solve()

    def at_most(self, tokens: int, passes: int) -> float:
        """Cautious prediction. While all steps had one size, a step is assumed to cost only its
        tokens, and a pass as much as a step. Infinite before the first step."""
        count, total, _, seconds, *_ = self._sums
        if not count:
            return math.inf
        unknown_passes = 0.0 if self._passes_known else passes * seconds / count
        if self.known:
            return self.seconds(tokens, passes) + unknown_passes
        return seconds * max(1 / count, tokens / total) + unknown_passes

    def seconds(self, tokens: int, passes: int) -> float:
        """Predicted duration, which never falls with more tokens or passes; 0 before the first
        step."""
        count, total, total_passes, seconds, *_ = self._sums
        if not count:
            return 0.0
        more = self.token_seconds * (count * tokens - total)
        more += self._pass_seconds * (count * passes - total_passes)
        return max(1e-9, (seconds + more) / count)

    def _solve(self) -> None:
        """Makes the smallest change of both prices that fits the steps; neither is negative."""
        count, tokens, passes, seconds, *products = self._sums
        means = tokens * tokens, tokens * passes, passes * passes, tokens * seconds
        of = zip(products, (*means, passes * seconds), strict=True)
        a, b, c, d, e = (product - mean / count for product, mean in of)
        if a + c <= LEAST_SPREAD * (tokens * tokens + passes * passes) / count:
            return
        self.known, self._passes_known = True, self._passes_known or passes > 0
        firm = FIRMNESS * (a + c)
        d -= a * self.token_seconds + b * self._pass_seconds
        e -= b * self.token_seconds + c * self._pass_seconds
        a, c = a + firm, c + firm
        determinant = a * c - b * b
        token = self.token_seconds + (c * d - b * e) / determinant
        a_pass = self._pass_seconds + (a * e - b * d) / determinant
        if token < 0:  # only the other price
            token, a_pass = 0.0, self._pass_seconds + (e + b * self.token_seconds) / c
        elif a_pass < 0:
            token, a_pass = self.token_seconds + (d + b * self._pass_seconds) / a, 0.0
        self.token_seconds, self._pass_seconds = max(0.0, token), max(0.0, a_pass)


@dataclass(slots=True)
class Lag:
    """Cost of a draft model's catching up, and the time credit for drafts that may not pay."""

    credit_seconds: float = 0.0
    """Seconds that may be spent on such drafts; below 0 until losses are paid back."""
    _tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def token_seconds(self) -> float:
        """Seconds per token caught up; 0 while unknown."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learns from catching up on `tokens` tokens. Few tokens count less, because a pass for
        them shows little about the price of a token."""
        self._tokens = self._tokens * (1 - LAG_LEARNING) + tokens
        self._seconds = self._seconds * (1 - LAG_LEARNING) + max(0.0, seconds)

    def settle(self, seconds: float) -> None:
        """Settles the seconds that a step with drafts has saved, or lost if negative. Savings only
        pay back earlier losses."""
        self.credit_seconds = min(0.0, self.credit_seconds + seconds)
