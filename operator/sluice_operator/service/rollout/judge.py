"""The judge of a canary: whether more keys have something bad on the new revision than on the
former one, by counts of both over the same time.

A key is a chat, or a request without one. It is bad from its first bad minute on, and counted bad
once. Its side is drawn by its hash. So if the revisions are alike, each key that turns bad is the
canary's with the canary's share of the keys, whatever made it bad: bursts that hit both sides,
clients that always fail, and requests that fail together change when keys turn bad, not whose.

The test is a mixture of bets, each a supermartingale while its hypothesis is true (Ville's
inequality: its wealth reaches 1 / level with a probability of at most `level`), so looking at any
time, and stopping at any look, costs no error. `docs/explanation/canary.md` has the argument, the
figures and the limits. Pure; knows neither requests nor clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, log, log1p, sqrt
from typing import Final, Literal

Comparison = Literal["same", "worse", "undecided"]

MARGIN_LEVEL: Final = 0.1
"""Probability, at most, with which a revision that is worse by no more than the margin is halted.
One that is not worse at all: `Judge.level`."""
MAX_KEYS: Final = 1_000_000
"""Upper end of every estimate of keys."""

_WORSE_BETS: Final = (0.15, 0.3, 0.6, 1.2, 2.4, 4.8)
"""What a bad key of the canary adds to the wealth that bets on "worse"; in parts of the wealth."""
_SAME_BETS: Final = (0.97, 0.8, 0.5, 0.3, 0.15, 0.07)
"""What a bad key of the canary takes from the wealth that bets on "same"; in parts of it."""
_MOST_AT_STAKE: Final = 0.9
"""Part of the wealth that a bad key of the former revision takes at most."""


@dataclass(frozen=True)
class Counts:
    """One revision over one time: of one look, or since the step began."""

    trials: int
    """Minutes of keys that were not bad before: a key's requests of one minute are one trial."""
    bad: int
    """Trials in which something was bad; a key has one at most."""
    keys: int
    """Keys that were seen for the first time. Rates and the margin are of keys."""

    def __post_init__(self) -> None:
        assert 0 <= self.bad <= self.trials, self
        assert 0 <= self.keys <= self.trials, self

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.trials + other.trials, self.bad + other.bad, self.keys + other.keys)

    @property
    def rate(self) -> float:
        """Bad keys by keys, 0 to 1; 0 without any key."""
        return min(1.0, self.bad / self.keys) if self.keys else 0.0


NOTHING: Final = Counts(0, 0, 0)


@dataclass(frozen=True)
class Evidence:
    """What was seen of one signal since the step began."""

    new: Counts = NOTHING
    former: Counts = NOTHING
    worse: tuple[float, ...] = (0.0,) * len(_WORSE_BETS)
    """Logarithm of the wealth of each bet on "worse", as if there were no margin."""
    same: tuple[float, ...] = (0.0,) * len(_SAME_BETS)
    """Logarithm of the wealth of each bet on "same", as if there were no margin."""

    def __post_init__(self) -> None:
        assert len(self.worse) == len(_WORSE_BETS), self
        assert len(self.same) == len(_SAME_BETS), self

    def after(self, new: Counts, former: Counts) -> Evidence:
        """Evidence with one more look, both counts over the same time. A time in which one of both
        had no trial says nothing, so nothing of it is counted."""
        if not new.trials or not former.trials:
            return self
        odds = new.trials / former.trials
        return replace(
            self,
            new=self.new + new,
            former=self.former + former,
            worse=_rounded(
                wealth + _log_wealth(min(bet, _MOST_AT_STAKE / odds), odds, new, former)
                for wealth, bet in zip(self.worse, _WORSE_BETS, strict=True)
            ),
            same=_rounded(
                wealth + _log_wealth(-bet, odds, new, former)
                for wealth, bet in zip(self.same, _SAME_BETS, strict=True)
            ),
        )


@dataclass(frozen=True)
class Judge:
    """What is asked of the evidence of one signal in one step."""

    margin: float
    """Difference of rates, 0 to 1, up to which the new revision counts as the same."""
    level: float
    """Probability of a wrong verdict, at most: this signal's and step's part."""
    routers: int = 1
    """How many count apart, at least 1: a chat that several see is counted by each."""

    def verdict(self, evidence: Evidence) -> Comparison:
        """`worse`: more keys are bad than on the former revision, and by more than the margin.
        `same`: not by more than the margin."""
        if self._is_shown(evidence.worse, self.level) and self._is_shown(
            self._beyond_margin(evidence), MARGIN_LEVEL
        ):
            return "worse"
        return "same" if self._is_shown(self._within_margin(evidence), self.level) else "undecided"

    def is_near(self, evidence: Evidence, *, only_worse: bool) -> bool:
        """Whether evidence had half of what a verdict takes: the logarithm of a wealth is at least
        half of that of 1 / level."""
        wealths = [evidence.worse, *([] if only_worse else [self._within_margin(evidence)])]
        return any(self._is_shown(each, sqrt(self.level)) for each in wealths)

    def keys_left(self, evidence: Evidence) -> int:
        """About how many more keys of the canary "same" takes, if both have the rate that they
        had together; 0 to `MAX_KEYS`. More if the canary is worse."""
        new, former = evidence.new, evidence.former
        base = (new.bad + former.bad) / max(1, new.keys + former.keys)
        share = new.trials / max(1, new.trials + former.trials)
        needed, wealths = -log(self.level) * self.routers, self._within_margin(evidence)
        return _keys_until(needed, wealths, base, share or 0.1, self.margin)

    def _within_margin(self, evidence: Evidence) -> list[float]:
        keys = evidence.new.keys
        return [
            wealth + bet * self.margin * keys
            for wealth, bet in zip(evidence.same, _SAME_BETS, strict=True)
        ]

    def _beyond_margin(self, evidence: Evidence) -> list[float]:
        keys = evidence.new.keys
        return [
            wealth - bet * self.margin * keys
            for wealth, bet in zip(evidence.worse, _WORSE_BETS, strict=True)
        ]

    def _is_shown(self, wealths: Iterable[float], level: float) -> bool:
        """Whether the mean wealth shows it. Routers that count the same key stake on it once each;
        the n-th root of such a wealth grows no more than one router's (Hölder's inequality)."""
        return _log_mean(wealth / self.routers for wealth in wealths) >= -log(level)


def keys_needed(base_rate: float, margin: float, level: float, share: float = 0.1) -> int:
    """About how many keys of the canary "same" takes if both revisions have `base_rate`, 0 to 1,
    and the canary has `share` of the keys; up to `MAX_KEYS`."""
    return _keys_until(-log(level), [0.0] * len(_SAME_BETS), base_rate, share, margin)


def _keys_until(
    needed: float, wealths: list[float], base: float, share: float, margin: float
) -> int:
    """Keys of the canary until the mean wealth of the bets on "same" is expected to be `needed`."""
    odds = min(share, 0.99) / (1 - min(share, 0.99))
    gains = [
        base * log1p(-bet) + base / odds * log1p(bet * odds) + bet * margin for bet in _SAME_BETS
    ]
    left = [
        (needed + log(len(_SAME_BETS)) - wealth) / gain
        for wealth, gain in zip(wealths, gains, strict=True)
        if gain > 0
    ]
    return max(0, min(MAX_KEYS, round(min(left, default=MAX_KEYS))))


def _log_wealth(bet: float, odds: float, new: Counts, former: Counts) -> float:
    """What one look adds to the logarithm of a bet's wealth. As log(1 + x) <= x, its wealth grows
    by exp(bet * (bad of the canary - odds * bad of the former one)) at most on average, which is
    none if their rates are equal."""
    return new.bad * log1p(bet) + former.bad * log1p(-bet * odds)


def _log_mean(logs: Iterable[float]) -> float:
    """Logarithm of the mean of what has these logarithms."""
    values = list(logs)
    most = max(values)
    return most + log(sum(exp(value - most) for value in values) / len(values))


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, 6) for value in values)
