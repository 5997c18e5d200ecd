"""The judge of a canary: exact probabilities of its verdicts, by enumeration of all counts."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import exp, lgamma, log, log1p
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from sluice_operator.api.scaling import JudgeSpec
from sluice_operator.service.rollout.judge import (
    MARGIN_LEVEL,
    NOTHING,
    Counts,
    Evidence,
    Judge,
    keys_needed,
)
from sluice_operator.service.rollout.shortfall import SHORT_LEVEL, Shortfall

JUDGE = Judge(margin=0.005, level=0.01)
DEFAULT = Judge(JudgeSpec().margin_points / 1000, level=0.005)
"""Judges a signal of the default canary, which has one step and two signals."""
Probabilities = NDArray[np.float64]


def keys(count: int, bad: int) -> Counts:
    """Keys of a single minute each."""
    return Counts(count, bad, count)


def evidence(new: Counts, former: Counts) -> Evidence:
    return Evidence().after(new, former)


def probability(
    verdict: Literal["same", "worse"],
    rates: tuple[float, float],
    looks: int,
    per_look: tuple[int, int],
    judge: Judge = JUDGE,
) -> float:
    """Probability that one of `looks` looks brings the verdict; rates and keys a look are of the
    new and the former revision. Exact: a wealth depends on totals alone if all looks are alike."""
    alive: Probabilities = np.ones((1, 1))
    for look in range(1, looks + 1):
        alive = _with_look(_with_look(alive, per_look[0], rates[0]).T, per_look[1], rates[1]).T
        _end(alive, verdict, look, per_look, judge)
    return float(1 - alive.sum())


def _with_look(alive: Probabilities, trials: int, rate: float) -> Probabilities:
    """With one look's bad trials added along the first axis; what is rarer than 1e-9 is left
    out, so it counts as a verdict."""
    chances = [_chance(bad, trials, rate) for bad in range(trials + 1)]
    likely = [bad for bad, chance in enumerate(chances) if chance > 1e-12]
    result = np.zeros((alive.shape[0] + likely[-1], alive.shape[1]))
    for bad in likely:
        result[bad : bad + alive.shape[0]] += chances[bad] * alive
    kept = np.flatnonzero(result.sum(axis=1) > 1e-12)
    return result[: kept[-1] + 1] if kept.size else result


def _chance(bad: int, trials: int, rate: float) -> float:
    """Binomial probability of so many bad trials."""
    if not 0 < rate < 1:
        return float(bad == trials * rate)
    ways = lgamma(trials + 1) - lgamma(bad + 1) - lgamma(trials - bad + 1)
    return exp(ways + bad * log(rate) + (trials - bad) * log1p(-rate))


def _end(
    alive: Probabilities,
    verdict: str,
    look: int,
    per_look: tuple[int, int],
    judge: Judge,
) -> None:
    """Sets what has the verdict to 0. It is monotone in the canary's bad keys: "worse" from a
    number on, "same" up to one."""
    for former_bad in np.flatnonzero(alive.sum(axis=0) > 1e-12):
        low, high = 0, alive.shape[0]
        while low < high:
            middle = (low + high) // 2
            reached = judge.verdict(
                evidence(
                    keys(look * per_look[0], middle), keys(look * per_look[1], int(former_bad))
                )
            )
            if (reached == verdict) == (verdict == "worse"):
                high = middle
            else:
                low = middle + 1
        if verdict == "worse":
            alive[low:, former_bad] = 0
        else:
            alive[:low, former_bad] = 0


@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_equal_revisions_are_found_worse_with_the_level_at_most(rate: float) -> None:
    wrong = probability("worse", (rate, rate), 5, (40, 120), Judge(0, 0.01))

    assert 0.0001 < wrong <= 0.01


@given(rate=st.floats(0, 1), trials=st.tuples(st.integers(1, 6), st.integers(1, 6)), data=st.data())
def test_no_bet_gains_on_average_at_equal_rates(
    rate: float, trials: tuple[int, int], data: st.DataObject
) -> None:
    """In any look: whatever share of the keys the canary has, and however large a burst is."""
    number = data.draw(st.integers(0, 5))
    worse = same = 0.0
    for new_bad in range(trials[0] + 1):
        for former_bad in range(trials[1] + 1):
            seen = evidence(keys(trials[0], new_bad), keys(trials[1], former_bad))
            chance = _chance(new_bad, trials[0], rate) * _chance(former_bad, trials[1], rate)
            worse += chance * exp(seen.worse[number])
            same += chance * exp(seen.same[number])

    assert max(worse, same) <= 1 + 1e-4


def test_a_revision_that_is_worse_by_the_margin_is_halted_with_the_margins_level_at_most() -> None:
    halted = probability("worse", (0.03, 0.01), 6, (100, 300), Judge(0.02, 0.2))

    assert 0.001 < halted <= MARGIN_LEVEL


def test_a_revision_that_is_worse_by_the_margin_is_promoted_with_the_level_at_most() -> None:
    promoted = probability("same", (0.06, 0.02), 10, (40, 120), Judge(0.04, 0.05))

    assert 0.001 < promoted <= 0.05


@pytest.mark.parametrize(
    ("judge", "more"), [(Judge(0.005, 0.005), 0.02), (DEFAULT, 0.05)], ids=["margin 5", "default"]
)
@pytest.mark.parametrize("base", [0.001, 0.01])
def test_a_worse_revision_is_found_within_two_thousand_trials(
    judge: Judge, more: float, base: float
) -> None:
    assert probability("worse", (base + more, base), 5, (400, 1_200), judge) >= 0.9


def test_equal_revisions_are_not_found_worse_and_are_the_same_at_the_forecast_by_default() -> None:
    needed = keys_needed(0.01, DEFAULT.margin, DEFAULT.level, share=0.25)
    looks = 5, (needed // 4, 3 * needed // 4)

    assert probability("worse", (0.01, 0.01), *looks, DEFAULT) <= 0.01
    assert probability("same", (0.01, 0.01), *looks, DEFAULT) > 0.5


def test_nothing_is_decided_before_anything_was_seen() -> None:
    assert JUDGE.verdict(Evidence()) == "undecided"


def test_a_canary_whose_first_keys_all_fail_is_worse() -> None:
    assert JUDGE.verdict(evidence(keys(8, 8), keys(70, 0))) == "worse"


def test_a_burst_on_both_revisions_shows_nothing() -> None:
    assert JUDGE.verdict(evidence(keys(100, 90), keys(300, 270))) == "undecided"


def test_a_time_in_which_one_revision_had_no_trial_says_nothing() -> None:
    before = evidence(keys(100, 1), keys(300, 3))

    assert before.after(NOTHING, keys(300, 200)) == before
    assert before.after(keys(100, 90), NOTHING) == before


def test_keys_that_were_seen_before_still_turn_bad() -> None:
    before = evidence(keys(100, 0), keys(300, 0))

    assert JUDGE.verdict(before.after(Counts(100, 20, 0), Counts(300, 0, 0))) == "worse"


def test_rates_and_margin_are_of_keys_not_of_minutes() -> None:
    one_minute_each = evidence(Counts(2_000, 0, 2_000), Counts(6_000, 0, 6_000))
    twenty_minutes_each = evidence(Counts(2_000, 0, 100), Counts(6_000, 0, 300))

    assert JUDGE.verdict(one_minute_each) == "same"
    assert JUDGE.verdict(twenty_minutes_each) == "undecided"


def test_each_router_that_counts_apart_takes_as_many_trials_again() -> None:
    twice = Judge(JUDGE.margin, JUDGE.level, routers=2)
    seen = evidence(keys(1_500, 0), keys(4_500, 0))

    assert (JUDGE.verdict(seen), twice.verdict(seen)) == ("same", "undecided")
    assert twice.verdict(evidence(keys(3_000, 0), keys(9_000, 0))) == "same"


def test_evidence_goes_through_json() -> None:
    seen = evidence(keys(1_000, 7), keys(3_000, 11)).after(keys(13, 1), keys(31, 2))

    assert TypeAdapter(Evidence).validate_python(json.loads(json.dumps(asdict(seen)))) == seen


def test_keys_left_end_with_the_verdict() -> None:
    left = JUDGE.keys_left(evidence(keys(1_000, 0), keys(3_000, 0)))

    assert 200 < left < 500
    assert JUDGE.verdict(evidence(keys(1_000 + left, 0), keys(3_000 + 3 * left, 0))) == "same"


def test_what_cannot_be_shown_takes_the_most_trials() -> None:
    assert keys_needed(0.01, 0, 0.01) == 1_000_000


def answered(share: int, routers: int, chats: int, records: int = 10_000) -> NDArray[np.int64]:
    """Keys that routers count in records of two minutes: [trials or keys][new or former][record].
    So many chats begin each minute. They have 1 to 50 requests half a minute apart, to any
    router."""
    random, minutes = np.random.default_rng(54), 2 * records
    sizes = np.exp(random.uniform(0, np.log(51), chats * minutes)).astype(int)
    chat = np.repeat(np.arange(len(sizes)), sizes)
    number = np.arange(len(chat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    minute = (random.uniform(0, minutes, len(sizes))[chat] + number / 2).astype(int)
    key = chat * routers + random.integers(0, routers, len(chat))
    is_former = random.random(len(sizes)) * 100 >= share
    key, minute = np.divmod(np.unique(key * 2 * minutes + minute), 2 * minutes)
    is_new_key = np.diff(key, prepend=-1) > 0
    side, counts = is_former[key // routers].astype(int), np.zeros((2, 2, 2 * minutes), int)
    np.add.at(counts[0], (side, minute), 1)
    np.add.at(counts[1], (side[is_new_key], minute[is_new_key]), 1)
    records_of = counts[:, :, :minutes].reshape(2, 2, records, 2)
    return np.asarray(records_of.sum(axis=3))


@pytest.mark.parametrize(
    ("share", "routers", "chats"), [(10, 1, 2), (10, 2, 2), (25, 1, 2), (50, 1, 1)]
)
def test_no_shortfall_is_shown_of_an_equal_revision_in_ten_thousand_records(
    share: int, routers: int, chats: int
) -> None:
    shortfall, most, delays = Shortfall(), 0.0, 0
    for trials, others, new, former in answered(share, routers, chats).reshape(4, -1).T.tolist():
        counted = Counts(trials, 0, new), Counts(others, 0, former)
        shortfall = shortfall.after(*counted, 2, share, routers)
        most, delays = max(most, shortfall.wealth / routers), delays + shortfall.delays(routers)

    assert 5 < most < -log(SHORT_LEVEL)
    assert 10 < delays <= 100, "a promotion waits in 1 % of the minutes"
