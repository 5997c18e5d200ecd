"""How far steps are from their prediction, for a promise about a share of them.

Keeps observed over predicted of the last steps. What a share of them stays under is an order
statistic, such that the next step is over it no more often than asked for, however their durations
are spread: a few per cent of slow steps, which machines have, are in no normal distribution. While
there are too few steps for that share, their mean and spread say more, if it is more than the
largest. Knows no shape and no target.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from statistics import NormalDist
from typing import Final

STEPS: Final = 400
"""That are remembered."""
HICCUP: Final = 2.0
"""From so many times the prediction on, the machine stood still: no smaller step would help."""
PRIOR_STEPS: Final = 8
PRIOR_SPREAD: Final = 0.05
"""Before there is any data: as if so many steps had been about so far from their prediction."""


class Residuals:
    """Observed over predicted seconds of the last steps."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, ratio: float) -> None:
        """One step more; a hiccup of the machine says nothing about the steps to come."""
        if ratio >= HICCUP:
            return
        if len(self._ratios) == STEPS:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft())]
        self._ratios.append(ratio)
        insort(self._sorted, ratio)

    def rescale(self, factor: float) -> None:
        """Steps are predicted to take so many times as long from now on: what those before took is
        less by as much, beside what is predicted now."""
        ratios = [ratio / factor for ratio in self._ratios]
        self._ratios.clear()
        self._sorted.clear()
        for ratio in ratios:
            self.add(ratio)

    def bound(self, share: float) -> float:
        """What the next step stays under with probability `share`."""
        steps = len(self._sorted)
        over = int((1 - share) * (steps + 1))
        if over:
            return self._sorted[-over]
        return max([self._normal_bound(share), *self._sorted[-1:]])

    def _normal_bound(self, share: float) -> float:
        """From the mean and the spread, the prior's steps included."""
        steps = PRIOR_STEPS + len(self._sorted)
        mean = (PRIOR_STEPS + sum(self._sorted)) / steps
        squares = PRIOR_STEPS * (PRIOR_SPREAD**2 + (1 - mean) ** 2)
        squares += sum([(ratio - mean) ** 2 for ratio in self._sorted])
        return mean + NormalDist().inv_cdf(share) * math.sqrt(squares / steps)
