"""A canary that answers too few of its keys is worse, or at least not promoted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import SideCounts, TrialCounts
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.step import StepEvidence
from sluice_router.canary import CanaryKey, goes_to_new
from sluice_router.engines import Fleet
from sluice_router.trials import MINUTE_SECONDS, Trials

from tests.operator.service.rollout.canary_world import (
    SHARES,
    ZERO,
    counts,
    judge,
    judged,
    look,
    seen,
)
from tests.router.test_canary import engine as router_engine
from tests.router.test_trial_minutes import attempt
from tests.router.test_trials import Clock

TENTH = {Role.MIXED: CanaryShare("b", "a", 10)}
STOPS, REFUSES, ALIKE = [10] * 6 + [0] * 10, [1] * 10, [10] * 10


def answering(
    answered: Sequence[int],
    keys: int = 100,
    *,
    recurs: bool = True,
    routers: str = "r",
    are_missing: bool = False,
    **by: Any,
) -> tuple[CanaryState, int]:
    """The state, and after how many minutes, where each router sees so many other keys a minute, a
    tenth the canary's, which answers so many of them."""
    state, new = CanaryState(), 0
    judges = judge(minutes=30, steps=[10], **by)
    for minute in range(len(answered) + 1):
        new += answered[minute - 1] if minute else 0
        each = {"percent": 10, "recurs": recurs}
        numbers = (counts((new, 0), (keys * 9 // 10 * minute, 0), r, **each) for r in routers)
        looks = (look(minute, *numbers),)
        state = judges.after(state, TENTH, (), looks, are_missing=are_missing)
        if state.verdict:
            break
    return state, minute


@pytest.mark.parametrize(
    ("answered", "minute"),
    [(STOPS, 9), (REFUSES, 6), ([4] * 20, 12), ([6] * 60, None), (ALIKE, None), ([0, 0], None)],
    ids=["stops", "refuses 90 %", "refuses 60 %", "refuses 40 %", "alike", "two minutes"],
)
@pytest.mark.parametrize("routers", ["r", "rs"])
def test_a_canary_that_answers_less_than_half_of_its_share_is_worse(
    answered: list[int], minute: int | None, routers: str
) -> None:
    """A full queue is no trial, and neither is a request that is lost."""
    state, minutes = answering(answered, routers=routers)
    assert (state.verdict, minutes) == (("worse", minute) if minute else (None, len(answered)))
    without = answering(answered, routers=routers, judge={"errors": False})
    assert without[0].verdict is None


def test_the_keys_of_a_canary_that_stops_are_named() -> None:
    expected = "it answered 0 of the last 270 keys, and its share is 10 %"
    assert answering(STOPS)[0].why == expected


def test_few_keys_show_no_shortfall() -> None:
    assert answering([0] * 15, keys=10)[0].verdict is None
    assert answering([0] * 20, keys=10)[0].verdict == "worse"


def test_routers_that_see_other_keys_show_a_shortfall_together() -> None:
    minutes = [
        answering([5] * 5 + [0] * 9, keys=50, recurs=recurs, routers=routers)[1]
        for recurs, routers in ((False, "r"), (False, "rs"), (True, "rs"))
    ]
    assert minutes == [9, 8, 9], "keys that recur may be the same"


@pytest.mark.parametrize(("answered", "minute"), [(2, 6), (3, None)])
def test_missing_engines_excuse_a_canary_that_answers_a_quarter_of_its_share(
    answered: int, minute: int | None
) -> None:
    state, minutes = answering([answered] * 20, are_missing=True)
    assert (state.verdict, minutes) == (("worse", minute) if minute else (None, 20))


@pytest.mark.parametrize("pause", ["gap", "percent"])
def test_a_shortfall_is_shown_by_warm_engines_at_one_share(pause: str) -> None:
    by, state = judge(minutes=30, steps=[10]), CanaryState()
    for minute in range(11):
        late = 60 * (pause == "gap" and minute > 2)
        epoch = "r2" if pause == "percent" and minute > 2 else "r1"
        percent = 5 if epoch == "r2" else 10
        answer = look(minute + late, counts((0, 0), (400 * minute, 0), epoch, percent=percent))
        state = by.after(state, {Role.MIXED: CanaryShare("b", "a", percent)}, (), (answer,))
        if state.verdict:
            break
    assert (state.verdict, minute) == ("worse", 9)


def test_an_equal_revision_is_not_worse_while_its_caches_are_cold() -> None:
    """400 chats ask once a minute, 40 of them the canary's engine. It takes 7.5 s for each chat at
    first, so it serves 7 or 8 chats a minute until it has all."""
    by, state, answered, new = judge(minutes=30, steps=[10]), CanaryState(), 0, 0
    for minute, (trials, keys) in enumerate(
        [(0, 0), (7, 7), (8, 8), (8, 8), (8, 8), (8, 8), (40, 1), *[(40, 0)] * 9]
    ):
        answered, new = answered + trials, new + keys
        former = TrialCounts(trials=360 * minute, keys=360 * (minute > 0))
        sides = {
            "new_counts": SideCounts(errors=TrialCounts(trials=answered, keys=new)),
            "former_counts": SideCounts(errors=former),
        }
        counted = counts((0, 0), (0, 0), percent=10).model_copy(update=sides)
        state = by.after(state, TENTH, (), (look(minute, counted),))
        assert state.verdict is None
    assert "share" not in by.text(StepEvidence.of(state.learnt)), "it answers all again"


def test_a_canary_that_has_stopped_is_worse_though_some_minutes_have_no_request() -> None:
    """A minute without any request shows nothing."""
    former = [0, *(15_000 + 7 * (minute - minute // 3) for minute in range(29))]
    looks = [look(n, counts((5000 * (n > 0), 0), (each, 0))) for n, each in enumerate(former)]
    assert judged(judge(minutes=30, steps=[25]), *looks).verdict == "worse"


@pytest.mark.parametrize(("keys", "verdict"), [(1, None), (100, "promoted")])
def test_few_answers_after_a_shortfall_promote_nothing(keys: int, verdict: str | None) -> None:
    alike, stopped = counts((5000, 0), (15_000, 0)), counts((5000, 0), (15_500, 0))
    back = counts((5000 + keys, 0), (15_500 + 3 * keys, 0))
    looks = [look(n, each) for n, each in enumerate((ZERO, alike, stopped, back))]
    assert judged(judge(minutes=3, steps=[25]), *looks).verdict == verdict


def test_a_canary_that_has_stopped_is_not_promoted_though_no_key_is_new() -> None:
    """The same 20,000 sessions ask again and again."""
    by = judge(steps=[25])
    alike, states = counts((5000, 0), (15_000, 0)), []
    for answered in (5000, 0):
        new, former = (
            SideCounts(errors=TrialCounts(trials=trials, keys=keys))
            for trials, keys in ((5000 + answered, 5000), (30_000, 15_000))
        )
        later = alike.model_copy(update={"new_counts": new, "former_counts": former})
        states.append(judged(by, look(0, ZERO), look(1, alike), look(2, later)))
    assert [state.verdict for state in states] == ["promoted", None]
    text = by.text(StepEvidence.of(states[1].learnt))
    assert "the new revision answered less than half of its share" in text


def test_a_canary_that_refuses_most_of_its_requests_is_worse() -> None:
    """Chats with a request a minute for five minutes, which a router counts; a full queue has no
    place for 9 of 10 of the canary's."""
    clock, draw = Clock(), random.Random(54)
    counted = Trials(clock, Fleet(clock))
    sides = {new: (router_engine("e", "b" if new else "a"),) for new in (True, False)}
    by, state = judge(minutes=30, steps=[25]), CanaryState()
    for minute in range(9):
        for chat in range(30 * minute, 30 * minute + 150):
            key = CanaryKey(str(chat).encode())
            new = goes_to_new(SHARES, key)
            status = 429 if new and draw.random() < 0.9 else 200
            attempt(counted, key, sides[new], SHARES, status=status)
        clock.now += MINUTE_SECONDS
        state = by.after(state, *seen(look(minute, *filter(None, [counted.counts(SHARES)]))))
        if state.verdict:
            break
    assert (state.verdict, minute) == ("worse", 6)
