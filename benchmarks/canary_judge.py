"""The judge of a canary on simulated revisions: how often it is wrong, how many keys it takes.

Wrong verdicts are counted on pairs of revisions whose right verdict does not end the looks. First
with independent trials, looked at every ten seconds for an hour. Then with an hour of chats of 1 to
50 requests whose failures are correlated (beta-binomial, 0.01 to 0.9), with bursts that hit both
revisions. They are counted as routers count: by one, and by two that see the same chats.
Of a canary that refuses 9 of 10 requests, or stops, the minutes until that is found.
Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from sluice_operator.api.scaling import JudgeSpec
from sluice_operator.service.rollout.judge import Counts, Evidence, Judge, keys_needed
from sluice_operator.service.rollout.shortfall import LOW_PART, Shortfall
from sluice_operator.service.rollout.step import WARM_MINUTES

MARGIN: Final = 0.005
DEFAULT_MARGIN: Final = JudgeSpec().margin_points / 1000
LEVEL: Final = 0.01
STEP_LEVEL: Final = 0.005
"""Level of each signal of the default canary, which has one step and two signals."""
BASES: Final = (0.001, 0.01, 0.05)
SHARES: Final = (0.05, 0.1, 0.25, 0.5)
LOOKS: Final = 360
"""An hour of independent trials."""
MINUTES: Final = 60
KINDS: Final = (("independent", 1), ("chats", 1), ("chats", 2))
"""Trials, and routers that count."""
Looks = Iterator[tuple[Counts, Counts]]


@dataclass(frozen=True)
class Case:
    """A pair of revisions: rates of failure, 0 to 1, and the new one's share of the keys."""

    base: float
    more: float
    share: float
    answers: float = 1.0
    """Part of its requests that the new one answers, from minute `since` on."""
    since: int = 0

    @property
    def rates(self) -> tuple[float, float]:
        """Rates of bad keys of the new and the former revision."""
        return self.base + self.more, self.base


def independent(case: Case, random: np.random.Generator, per_look: float, looks: int) -> Looks:
    """Looks at keys of one request each."""
    keys = random.poisson((per_look * case.share, per_look * (1 - case.share)), (looks, 2))
    bad = random.binomial(keys, case.rates)
    for (new, former), (new_bad, former_bad) in zip(keys.tolist(), bad.tolist(), strict=True):
        yield Counts(new, new_bad, new), Counts(former, former_bad, former)


def chats(case: Case, random: np.random.Generator, keys: int, routers: int) -> Looks:
    """Looks, a minute each, at an hour of chats of 1 to 50 requests: each chat has its own rate of
    failure, and in a burst every request fails with a half, whosever it is."""
    correlation = random.uniform(0.01, 0.9)
    is_new = random.random(keys) < case.share
    size = np.exp(random.uniform(0, np.log(51), keys)).astype(int)
    rate = _beta(random, case.base, correlation, keys)
    if case.more:
        rate = 1 - (1 - rate) * (1 - is_new * _beta(random, case.more, correlation, keys))
    key = np.repeat(np.arange(keys), size)
    begins = random.integers(0, MINUTES, keys)
    minute = (begins[key] + random.random(len(key)) * size[key] / 2).astype(int)
    lasts = minute < MINUTES
    if case.answers < 1:
        is_refused = random.random(len(key)) > case.answers
        lasts &= ~(is_new[key] & (minute >= case.since) & is_refused)
    key, minute = key[lasts], minute[lasts]
    burst = (random.random(MINUTES) < 0.03) * 0.5
    fails = random.random(len(key)) < np.maximum(rate[key], burst[minute])
    router = random.integers(0, routers, len(key))
    sums = sum(
        _counted(key[router == each], minute[router == each], fails[router == each], is_new)
        for each in range(routers)
    )
    for new, former in np.asarray(sums).transpose(2, 1, 0).tolist():
        yield Counts(*new), Counts(*former)


def _beta(
    random: np.random.Generator, rate: float, correlation: float, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rates of chats, of which two requests have that correlation."""
    spread = (1 - correlation) / correlation
    return random.beta(rate * spread, (1 - rate) * spread, count)


def _counted(
    key: np.ndarray, minute: np.ndarray, fails: np.ndarray, is_new: np.ndarray
) -> np.ndarray:
    """What one router counts: [trials, bad or keys][new or former][minute]."""
    active, bad = (np.zeros((len(is_new), MINUTES), bool) for _ in range(2))
    active[key, minute] = True
    bad[key[fails], minute[fails]] = True
    first_bad = bad & (np.cumsum(bad, axis=1) == 1)
    trial = active & ~((np.cumsum(bad, axis=1) > 0) & ~first_bad)
    seen = active & (np.cumsum(active, axis=1) == 1)
    sides = (is_new, ~is_new)
    return np.array(
        [[part[side].sum(axis=0) for side in sides] for part in (trial, first_bad, seen)]
    )


def reaches(looks: Looks, judge: Judge, verdict: str) -> int | None:
    """Keys of the canary when the verdict was reached; None if it was not."""
    evidence = Evidence()
    for new, former in looks:
        evidence = evidence.after(new, former)
        if judge.verdict(evidence) == verdict:
            return evidence.new.keys
    return None


def wrong(pairs: int) -> None:
    """Wrong verdicts of three kinds; of equal revisions the right one, too. False alarms are the
    rarest, so they take the most pairs."""
    few = max(1, pairs // 5)
    for name, margin, more, verdict, kinds, count in (
        ("equal, found worse", MARGIN, 0.0, "worse", KINDS, pairs),
        ("worse by the margin, found worse", MARGIN, MARGIN, "worse", KINDS[:1], few),
        ("worse by 4 points, margin 2, found the same", 0.02, 0.04, "same", KINDS, few),
        ("equal, margin 2 points, found the same", 0.02, 0.0, "same", KINDS, few),
    ):
        for kind, routers in kinds:
            random, judge = np.random.default_rng(54), Judge(margin, LEVEL, routers)
            reached = 0
            for _ in range(count):
                case = Case(float(random.choice(BASES)), more, float(random.choice(SHARES)))
                looks = (
                    independent(case, random, random.uniform(5, 200), LOOKS)
                    if kind == "independent"
                    else chats(case, random, int(random.integers(200, 2_000)), routers)
                )
                reached += reaches(looks, judge, verdict) is not None
            _print(name, reached / count, "share", trials=kind, routers=routers, pairs=count)


def found(pairs: int) -> None:
    """Power after 2,000 keys of the canary."""
    for margin in (MARGIN, DEFAULT_MARGIN):
        judge = Judge(margin, STEP_LEVEL)
        for share in SHARES:
            for base in BASES:
                for more in (0.01, 0.02, 0.05):
                    random = np.random.default_rng(54)
                    case = Case(base, more, share)
                    keys = [
                        reaches(independent(case, random, 20 / share, 100), judge, "worse")
                        for _ in range(pairs)
                    ]
                    hits = [count for count in keys if count is not None]
                    _print(
                        "found worse after 2,000 keys", len(hits) / pairs, "share",
                        base=base, more=more, share=share, margin=margin, pairs=pairs,
                    )  # fmt: skip


def short(pairs: int) -> None:
    """Minutes until a canary is found that answers too little of its share."""
    for answers, since in ((0.1, 0), (0.0, 20)):
        for share in (0.1, 0.25):
            for keys in (1_000, 2_000, 4_000):
                case = Case(0.001, 0.0, share, answers, since)
                random = np.random.default_rng(54)
                minutes = [found_short(case, random, keys) - since for _ in range(pairs)]
                _print(
                    "found to answer too little", float(np.median(minutes)), "minutes",
                    answers=answers, share=share, keys=keys, pairs=pairs,
                )  # fmt: skip


def found_short(case: Case, random: np.random.Generator, keys: int) -> float:
    """The minute in which one router's chats show it; `MINUTES`: none before."""
    shortfall, percent = Shortfall(), round(100 * case.share)
    for minute, (new, former) in enumerate(chats(case, random, keys, 1), 1):
        part = 0.0 if minute < WARM_MINUTES else LOW_PART
        shortfall = shortfall.after(new, former, 1, percent, 1, part)
        if shortfall.text(percent, 1):
            return minute
    return MINUTES


def needed(pairs: int) -> None:
    """Keys of the canary until the median of equal pairs is the same, and its forecast."""
    for margin in (0.005, 0.01, 0.02):
        for base in (0.0, *BASES):
            random, judge = np.random.default_rng(54), Judge(margin, STEP_LEVEL)
            forecast = keys_needed(base, margin, STEP_LEVEL)
            looks = [
                reaches(independent(Case(base, 0, 0.1), random, forecast / 5, 200), judge, "same")
                for _ in range(pairs)
            ]
            median = float(np.median([count or np.inf for count in looks]))
            _print("found the same", median, "keys", base=base, margin=margin, forecast=forecast)


def _print(metric: str, value: float, unit: str, **settings: object) -> None:
    print(
        json.dumps({"metric": metric, "value": round(value, 4), "unit": unit, **settings}),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    pairs = parser.parse_args().pairs
    wrong(pairs)
    found(max(1, pairs // 20))
    short(max(1, pairs // 200))
    needed(max(1, pairs // 50))


if __name__ == "__main__":
    main()
