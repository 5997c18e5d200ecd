"""How long a step takes, learnt from the steps before it.

    seconds = step + token x prompt tokens + product x context products
            + row x decode rows + context x decode context

Five coefficients, none negative, fitted to the relative error by least squares that forgets: each
new step makes those of its kind before it count for a little less. Steps with and without prompt
tokens are forgotten apart, so that an hour of decoding does not erase what prompts cost.

What prompts add to a step is measured too: its duration less the predicted one of the same step
without them. It is less than the prompts' own computation, part of which hides behind reading the
weights, as a step that only decodes does as well.

A step far from its prediction counts as one at the edge of what is likely. When several in a row
are far off on the same side, the machine has changed: all coefficients are scaled.

`Residuals` remembers how far steps were from their prediction, for a promise about a share of them.

Pure Python, some 15 microseconds a step. Knows no clock, no request and no device.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from operator import add, itemgetter, mul
from statistics import NormalDist
from typing import Final, NamedTuple

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
"""Passes of coordinate descent a step; each begins where the last step's ended."""
FORGOTTEN: Final = 1e-200
"""Evidence so old that rounding would lose it: the coefficient stays as it is."""
ENOUGH_EXTENDS: Final = 8
SETTLED_DECODES: Final = 32
"""Steps without prompt tokens that show what a step costs without them."""
SETTLED_EXTENDS: Final = 32
"""Steps with prompt tokens after which an error is the step's, not the model's."""
LIKELY_ERRORS: Final = 4.0
"""Multiple of the mean error beyond which a step is an outlier."""
LEAST_ERROR: Final = 0.05
CHANGE_STEPS: Final = 6
"""Consecutive outliers on one side that mean a change of the machine."""
STEPS: Final = 400
"""Minimum number of steps that are remembered."""
HICCUP: Final = 2.0
"""Ratio of observed to predicted time from which on the machine stood still: no smaller step would
have helped."""
LEAST_STEPS: Final = 3.8
"""Decayed count of steps that a `StepTime` needs before it predicts."""
LEAST_SPREAD: Final = 1e-6
"""Minimum variance over squared mean that counts as steps of different sizes."""
LINE_FORGETTING: Final = 0.98
"""Decay per step: a step counts for a third after some fifty more."""
LAG_LEARNING: Final = 0.15
"""Weight of one observation of a draft model catching up."""
FIRMNESS: Final = 1e-3
"""Ridge term as a share of the spread: prices that the steps hardly tell apart stay nearly as they
were."""
PRIOR_STEPS: Final = 8
PRIOR_SPREAD: Final = 0.05
"""Prior before there is any data: so many steps, with this spread around their prediction."""


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
        """Predicted duration of the step without its prompts, reading the weights as often."""
        step, _, _, row, context = self._coefficients
        return step * shape.passes + row * shape.decode_rows + context * shape.decode_context_tokens

    def marginal_token_seconds(self) -> float | None:
        """Seconds that a prompt token has lately added to a step that decodes anyway. At least 0,
        where prompts hide behind the weights. None before there is enough data of both kinds of
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
            # With rows that hardly change, a group is too small to separate from their errors.
            prompts = (0.0, shape.extend_tokens, shape.extend_context_products, 0.0, 0.0)
            rest = self._without_prompts(shape)
            self._groups.add(prompts, max(0.0, likely - rest), scale)
        self._decodes += not shape.extend_tokens
        self._solve()
        if shape.extend_tokens:
            self._measure_prompts(shape, min(seconds, HICCUP * scale))

    def _measure_prompts(self, shape: StepShape, seconds: float) -> None:
        """Adds what the prompts of a step of so many seconds added to it, once that is known."""
        if self._extends < SETTLED_EXTENDS or self._decodes < SETTLED_DECODES:
            return
        added = seconds - self._without_prompts(shape._replace(passes=1))
        self._prompt_tokens = self._prompt_tokens * FORGETTING + shape.extend_tokens
        self._prompt_seconds = self._prompt_seconds * FORGETTING + added

    def _judged(self, seconds: float, predicted: float, mixed: bool) -> float:
        """The duration to learn from: the measured one, unless it is unlikely."""
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
        """Adds steps that were no change of the machine to the residuals, as they may recur."""
        for step in steps:
            if step.mixed and self._extends >= SETTLED_EXTENDS:
                self._residuals.add(step.ratio)
        steps.clear()

    def _rescale(self, factor: float) -> None:
        """Scales all that was learnt: the machine became so many times slower."""
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
            for i, row, own, answer in equations:
                better = coefficients[i] + (answer - sum(map(mul, row, coefficients))) / own
                coefficients[i] = better if better > 0.0 else 0.0


class _Evidence:
    """Normal equations of one kind of step: `gram` x coefficients = `answers`."""

    def __init__(self) -> None:
        self.gram = [0.0] * len(PAIRS)
        """Entries at PAIRS; the matrix is symmetric."""
        self.answers = [0.0] * SIZE
        self.used = False

    def add(self, features: tuple[float, ...], seconds: float, scale: float) -> None:
        """Adds one step, weighted so that its relative error counts."""
        self.used = True
        weight = 1.0 / (scale * scale)
        weighted = [weight * feature for feature in features]
        products = [weighted[i] * features[j] for i, j in PAIRS]
        self.gram = [old * FORGETTING + new for old, new in zip(self.gram, products, strict=True)]
        self.answers = [
            old * FORGETTING + new * seconds
            for old, new in zip(self.answers, weighted, strict=True)
        ]


def steps_for(share: float) -> int:
    """Number of steps that determine the bound of this share: two of them are over it."""
    return max(STEPS, round(2 / (1 - share)))


class Residuals:
    """Observed over predicted seconds of the last steps.

    What a share of the steps stays under is an order statistic. It is chosen so that the next step
    is over it no more often than asked for, however step times are spread: machines have a few per
    cent of slow steps, which no normal distribution has. While there are too few steps for that
    share, the bound is the larger of the largest step and what mean and spread give; from 400 steps
    on the largest step alone, as mean and spread of thousands take long to compute.
    """

    def __init__(self, remembered_steps: int = STEPS) -> None:
        self._remembered_steps = remembered_steps
        self._ratios: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, ratio: float) -> None:
        """Adds one step; a hiccup of the machine says nothing about the steps to come."""
        if ratio >= HICCUP:
            return
        if len(self._ratios) == self._remembered_steps:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft())]
        self._ratios.append(ratio)
        insort(self._sorted, ratio)

    def rescale(self, factor: float) -> None:
        """Divides the ratios of earlier steps, because predictions are `factor` times as long from
        now on."""
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
    """Seconds of steps without prompts, from their tokens and the passes of a draft model: least
    squares that forgets. A price that the last steps do not show stays as it was."""

    def __init__(self) -> None:
        self._sums = [0.0] * 9
        """Decayed sums over steps: count, tokens, passes, seconds; then products of two of these
        without the count."""
        self.token_seconds = self._pass_seconds = 0.0
        self.known = False
        """Whether steps of different sizes were seen."""
        self._passes_known = False

    def observe(self, tokens: int, passes: int, seconds: float) -> None:
        """Learns from the duration of a step of so many tokens and passes."""
        pairs = tokens * tokens, tokens * passes, passes * passes, tokens * seconds
        new = (1.0, tokens, passes, seconds, *pairs, passes * seconds)
        self._sums = [old * LINE_FORGETTING + add for old, add in zip(self._sums, new, strict=True)]
        if self._sums[0] >= LEAST_STEPS:
            self._solve()

    def at_most(self, tokens: int, passes: int) -> float:
        """Predicted duration, with caution: while all steps had one size, a step costs only its
        tokens, and a pass as much as a step. Infinite before the first step."""
        count, total, _, seconds, *_ = self._sums
        if not count:
            return math.inf
        unknown_passes = 0.0 if self._passes_known else passes * seconds / count
        if self.known:
            return self.seconds(tokens, passes) + unknown_passes
        return seconds * max(1 / count, tokens / total) + unknown_passes

    def seconds(self, tokens: int, passes: int) -> float:
        """Predicted duration; more of anything never takes less. 0 before the first step."""
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
        if token < 0:  # the other one alone
            token, a_pass = 0.0, self._pass_seconds + (e + b * self.token_seconds) / c
        elif a_pass < 0:
            token, a_pass = self.token_seconds + (d + b * self._pass_seconds) / a, 0.0
        self.token_seconds, self._pass_seconds = max(0.0, token), max(0.0, a_pass)


@dataclass(slots=True)
class Lag:
    """Cost of a draft model's catching up, and the credit for drafts that do not pay."""

    credit_seconds: float = 0.0
    """Time that may be spent; less than 0 until losses are paid."""
    _tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def token_seconds(self) -> float:
        """Seconds per token caught up; 0 while unknown."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learns from catching up on so many tokens. Few tokens, which take a pass for little,
        count less than many."""
        self._tokens = self._tokens * (1 - LAG_LEARNING) + tokens
        self._seconds = self._seconds * (1 - LAG_LEARNING) + max(0.0, seconds)

    def settle(self, seconds: float) -> None:
        """Settles what a step with drafts has saved, or lost if negative. Savings pay for earlier
        losses, and for nothing else."""
        self.credit_seconds = min(0.0, self.credit_seconds + seconds)
