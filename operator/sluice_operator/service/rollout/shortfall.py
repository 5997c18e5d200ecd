"""Whether a canary answers too few of its keys, as one that refuses or loses requests, which are no
trials. `docs/explanation/canary.md` has the figures. Pure; knows neither requests nor clocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final

from pydantic import NonNegativeFloat, NonNegativeInt

from sluice_operator.service.rollout.judge import Counts

SHORT_LEVEL: Final = 1e-6
"""Probability, at most, that a record shows a shortfall of an equal revision: 1 % of 10,000
records, a week of minutes, in which one does."""
LOW_RECORDS: Final = 3
"""Records in a row that show a shortfall."""
LOW_PART: Final = 0.5
"""Part of its share below which a canary answers too little."""
MISSING_PART: Final = 0.25
"""Part of its share that a canary with missing engines should answer: its share falls where those
that are ready would get more than 1.5 times their requests."""
_FEW: Final = 0.2
"""Part of its share that a canary answers, in the bet on a shortfall; it gains below about 0.5."""


@dataclass(frozen=True)
class Shortfall:
    """What was seen of a canary that answers less than half of its keys, as one that refuses or
    loses requests, which are no trials.

    Each key is the canary's with the canary's share, drawn once. So while that answers as much as
    the former revision, neither the keys of a minute nor those seen for the first time later bring
    a bet on `_FEW` a gain on average, whatever requests a key has. A bet begins with each record,
    and the largest counts: together they grow by 1 a record at most on average."""

    wealth: NonNegativeFloat = 0.0
    """Logarithm of the wealth of the largest bet, of all routers."""
    new: NonNegativeInt = 0
    """Trials of the canary in `records`."""
    former: NonNegativeInt = 0
    records: NonNegativeInt = 0
    """Records in a row with less than `LOW_PART` of the canary's share, while `delays`."""

    def after(
        self,
        new: Counts,
        former: Counts,
        minutes: int,
        percent: int,
        routers: int,
        part: float = LOW_PART,
    ) -> Shortfall:
        """The shortfall with a record more, of so many minutes and routers that count apart. One
        with `part` of the share or more only delays. One without trials changes nothing."""
        trials = new.trials + former.trials
        if not trials:
            return self
        begun = _gain(new.trials, former.trials, percent) / max(1, minutes)
        gain = _gain(new.keys, former.keys, percent)
        # Sessions without a new one among them show by their trials that they are answered again.
        goes_on = self.wealth + (min(gain, begun) if begun < 0 else gain)
        wealth = min(-log(SHORT_LEVEL) * routers, max(0.0, begun, goes_on))
        share, after = percent * trials / 100, Shortfall(wealth)
        if new.trials >= LOW_PART * share or not after.delays(routers):
            return after
        if new.trials >= part * share:
            return Shortfall(wealth, new.trials, former.trials, 1)
        sums = self.new + new.trials, self.former + former.trials
        return Shortfall(wealth, *sums, self.records + 1)

    def delays(self, routers: int) -> bool:
        """Whether no step is passed: for an equal revision in less than 1 % of the records."""
        return 3 * self.wealth >= -log(SHORT_LEVEL) * routers

    def text(self, percent: int, routers: int) -> str:
        """Text about a shortfall at a share, for people; empty while it may be chance."""
        if self.records < LOW_RECORDS or self.wealth < -log(SHORT_LEVEL) * routers:
            return ""
        keys = f"{self.new:,} of the last {self.new + self.former:,} keys"
        return f"it answered {keys}, and its share is {percent} %"


def _gain(new: int, former: int, percent: int) -> float:
    """What so many keys add to the logarithm of the wealth of the bet on `_FEW`."""
    share = percent / 100
    return new * log(_FEW) + former * log((1 - _FEW * share) / (1 - share))
