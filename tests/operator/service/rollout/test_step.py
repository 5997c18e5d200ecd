"""The operator judges a canary's step: by what routers count, over the same time on both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts
from sluice_operator.scaled import LOOKS, Look
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.judge import Evidence
from sluice_operator.service.rollout.step import LEVEL, StepEvidence, rates_text
from sluice_router.canary import CanaryKey, goes_to_new
from sluice_router.engines import Fleet
from sluice_router.trials import MINUTE_SECONDS, Trials

from tests.operator.service.rollout.canary_world import (
    ALIKE_COUNTS,
    MANY,
    SHARES,
    ZERO,
    at_speed,
    counts,
    engine,
    judge,
    judged,
    look,
    pod,
    seen,
    totals,
)
from tests.router.test_canary import engine as router_engine
from tests.router.test_trial_minutes import attempt
from tests.router.test_trials import Clock


def test_equal_revisions_go_to_the_next_step_and_then_to_all() -> None:
    alike = counts((MANY, 20), (3 * MANY, 60))
    assert judged(judge(), look(0, ZERO), look(1, alike)).step == 0, "minutes have not passed"
    second = judged(judge(), look(0, ZERO), look(1, alike), look(2, alike))
    assert (second.step, second.verdict) == (1, None)
    assert second.why.startswith("20,000 of about ")
    assert "errors 0.1 % against 0.1 %; " in second.why
    assert second.why.endswith("; 2 of at least 2 minutes")
    more = counts((2 * MANY, 40), (6 * MANY, 120))
    third = judged(judge(), look(2, alike), look(3, more), look(4, more), state=second)
    assert (third.step, third.verdict) == (1, "promoted")


@pytest.mark.parametrize(("on_worse", "verdict"), [("Halt", "worse"), ("Hold", "held")])
def test_a_revision_with_more_errors_is_worse(on_worse: str, verdict: str) -> None:
    bad = counts((640, 32), (2560, 3))
    state = judged(judge(on_worse=on_worse), look(0, ZERO), look(1, bad))
    assert (state.step, state.verdict) == (0, verdict)
    assert state.why == "errors 5.0 % against 0.1 %"
    later = judge(on_worse=on_worse).after(state, *seen(look(9, counts((MANY, 32), (MANY, 3)))))
    assert later == state, "a verdict stays"


def test_every_look_is_judged_and_counts_are_recorded_once_a_minute() -> None:
    state = judged(judge(), look(0, ZERO), look(1, counts((9, 0), (27, 0))))
    after = judge().after(state, *seen(look(1.9, counts((18, 0), (54, 0)))))
    assert after == state
    assert judge().after(state, *seen(look(2, ZERO))) != state
    worse = judge().after(state, *seen(look(1.2, counts((640, 32), (2560, 3)))))
    assert (worse.verdict, totals(worse)) == ("worse", (640, 32, 2560, 3))


def test_only_time_at_a_step_between_near_looks_counts() -> None:
    state = judged(judge(), look(0, ZERO), look(1, ZERO))
    state = judge().after(state, *seen())
    bad = counts((640, 32), (2560, 3))
    state = judged(judge(), look(200, bad), look(201.5, bad), state=state)
    assert (state.verdict, StepEvidence.of(state.learnt).minutes) == (None, 2.5)
    assert totals(state) == (0, 0, 0, 0), "counts of a gap are no evidence"


def test_a_second_try_counts_nothing_of_the_first() -> None:
    bad = counts((640, 32), (2560, 3))
    worse = judged(judge(), look(0, ZERO), look(1, bad))
    again = worse.after(CanaryState(decision=1, seen=worse.place))
    assert (again.verdict, again.step) == (None, 0)
    later = counts((650, 32), (2600, 3))
    for looks in ((look(5), look(6, later)), (look(5, asked=1), look(6, later))):
        state = judged(judge(), *looks, state=again)
        assert (state.verdict, *totals(state)) == (None, 10, 0, 40, 0)


@pytest.mark.parametrize(("keys", "halvings"), [(300, 0), (1000, 1)])
def test_another_share_begins_anew_and_halves_the_level_only_near_a_verdict(
    keys: int, halvings: int
) -> None:
    by = judge(steps=[25])
    state = judged(by, look(0, ZERO), look(1, counts((keys, 0), (3 * keys, 0))))
    half = {Role.MIXED: CanaryShare("b", "a", 12)}
    other = look(2, counts((9, 1), (90, 0), "r2", percent=12))
    after = by.after(state, half, (), (other,))
    assert (after.verdict, totals(after)) == (None, (9, 1, 90, 0))
    step = StepEvidence.of(after.learnt)
    assert by.signal_judge(step).level == LEVEL / 2**halvings


@pytest.mark.parametrize(("bad", "halvings"), [(0, 0), (12, 1)])
def test_the_share_of_the_step_before_halves_the_level_only_near_worse(
    bad: int, halvings: int
) -> None:
    by, state = judge(judge={"marginPoints": 20}), CanaryState(step=1)
    for minute, counted in enumerate((ZERO, counts((300, bad), (900, 0)))):
        state = by.after(state, *seen(look(minute, counted)), is_at_step=False)
    more = {Role.MIXED: CanaryShare("b", "a", 50)}
    state = by.after(state, more, (), (look(2, counts((0, 0), (0, 0), "r2", percent=50)),))
    assert (state.verdict, StepEvidence.of(state.learnt).begun_anew) == (None, halvings)


def test_a_total_is_shown_as_reached_only_once_it_is() -> None:
    same, rates = counts((MANY, 20), (3 * MANY, 60)), counts((1500, 9), (4500, 9))
    by = judge(minutes=3)
    for answer, is_reached in ((same, True), (rates, False)):
        step = StepEvidence.of(judged(by, look(0, ZERO), look(1, answer)).learnt)
        ((_, keys, needed, _),) = by.rows(step)
        assert (keys == needed) is is_reached
    long = judged(by, *(look(n, ZERO) for n in range(30)))
    assert by.text(StepEvidence.of(long.learnt)).endswith("; 29 of at least 3 minutes")


def test_without_requests_a_step_is_stalled_after_ten_times_its_minutes() -> None:
    state = judged(judge(), look(0, ZERO), *(look(n, ZERO) for n in range(1, 20)))
    assert not judge().is_stalled(StepEvidence.of(state.learnt))
    state = judged(judge(), look(20, ZERO), state=state)
    step = StepEvidence.of(state.learnt)
    assert (state.verdict, judge().is_stalled(step)) == (None, True)
    assert judge().text(step).startswith("0 of about ")


def test_the_level_is_divided_over_signals_and_steps() -> None:
    assert judge().signal_judge().level == LEVEL / 2
    assert judge(has_slo=True).signal_judge().level == LEVEL / 4
    assert judge(steps=[5], judge={"slo": False}, has_slo=True).signal_judge().level == LEVEL
    assert judge(judge={"marginPoints": 20}).signal_judge().margin == pytest.approx(0.02)


def late(new: tuple[int, int], former: tuple[int, int]) -> CanaryCounts:
    """A router's counts of late keys; none failed."""
    late, base = counts(new, former), counts((new[0], 0), (former[0], 0))
    sides = {
        side: replace(getattr(base, side), late=getattr(late, side).errors)
        for side in ("new_counts", "former_counts")
    }
    return base.model_copy(update=sides)


def served(minute: float, counted: CanaryCounts, requests: int, queue: int = 4) -> Look:
    """A look at two engines, of which the canary's has got so many requests a minute, and the
    former one 50."""
    sides = (
        engine("b", finished_requests_total=round(minute * requests), running_requests=queue),
        engine("a", finished_requests_total=round(minute * 50), running_requests=8),
    )
    return look(minute, counted, engines=sides)


@pytest.mark.parametrize(
    ("requests", "warm", "queue", "verdict"),
    [(50, 5, 4, "worse"), (50, 5, 24, "worse"), (50, 3, 4, None), (70, 5, 4, None)],
    ids=["alike", "a queue of its own", "cold", "more requests"],
)
def test_late_answers_count_in_warm_engines_without_more_requests(
    requests: int, warm: int, queue: int, verdict: str | None
) -> None:
    bad = late((640, 64), (2560, 3))
    looks = [served(minute, ZERO, requests, queue) for minute in range(warm + 1)]
    state = judged(judge(has_slo=True), *looks, served(warm + 1, bad, requests, queue))
    assert state.verdict == verdict
    assert state.why == ("late answers 10.0 % against 0.1 %" if verdict else "")


def test_a_signal_that_was_compared_once_must_be_the_same() -> None:
    """Late answers that lean to worse, and then cannot be compared."""
    leaning = late((MANY, 200), (3 * MANY, 300))
    looks = [served(n, ZERO, 50) for n in range(6)]
    looks += [served(n, leaning, 50 if n == 6 else 99) for n in range(6, 12)]
    state = judged(judge(has_slo=True, steps=[25]), *looks)
    assert (state.verdict, len(StepEvidence.of(state.learnt).evidence)) == (None, 2)
    looks = [served(n, ZERO if n < 6 else leaning, 99) for n in range(12)]
    state = judged(judge(has_slo=True, steps=[25, 50]), *looks)
    assert state.step == 1
    assert state.why.endswith("; late answers were not compared")


def test_a_promotion_names_that_speed_was_not_compared() -> None:
    """Once it was in the step, it is so, also where engines are idle later."""
    texts = []
    for ratio in (1.0, None):
        idle = look(LOOKS, ALIKE_COUNTS, engines=(engine("b"), engine("a")))
        state = judged(judge(minutes=LOOKS), *at_speed(ratio))
        assert state.step == 0
        state = judge(minutes=LOOKS).after(state, *seen(idle))
        assert state.step == 1
        texts.append("; speed was not compared; " in state.why)
    assert texts == [False, True]
    by = judge(judge={"slo": False})
    assert "speed" not in by.text(StepEvidence.of(judged(by, look(0, ZERO)).learnt))


def test_an_engine_that_ends_twice_is_worse_at_once() -> None:
    state = judge().after(CanaryState(), *seen(pods=(pod("b-1", restarts=3),)))
    assert state.verdict is None, "before the step began"
    state = judge().after(state, *seen(pods=(pod("b-1", restarts=5),)))
    assert (state.verdict, state.why) == ("worse", "pod b-1 has ended 2 times")
    by_slo = judge(judge={"errors": False}, has_slo=True)
    assert by_slo.after(CanaryState(), *seen(pods=(pod("b-1", restarts=3),))).learnt == {}


@pytest.mark.parametrize(
    "learnt",
    [
        {"looked": "yesterday", "seconds": 5},
        {"seconds": "long"},
        {"answers": [1, 2, 3, 4]},
        {"routers": 5},
        {"seen": {"r1": ["many"]}},
        {"seen": 5},
        {"evidence": {"errors": {"new": 1}}},
        {"pods": {"b-1": [1, 2, 3, 4, 5, 6, 7]}},
        {"pods": {"b-1": ["many"]}},
        {"pods": {"b-1": "ab"}},
        {"looked": "2026-01-02T03:04:05"},
        {"seconds": float("nan")},
        {"begunAnew": -5},
        {"evidence": {"errors": {"worse": [0.0] * 5}}},
        {"evidence": {"errors": {"same": [float("inf")] * 6}}},
        {"shortfall": {"wealth": "much"}},
        {"shortfall": {"wealth": -1.0}},
        {"shortfall": {"records": -4}},
        {"shortfall": {"former": -4}},
    ],
)
def test_a_state_that_cannot_be_read_is_a_beginning(learnt: dict[str, Any]) -> None:
    assert StepEvidence.of(learnt) == StepEvidence()


def test_a_record_of_the_future_is_a_gap() -> None:
    future = CanaryState(learnt={"looked": "9999-01-02T03:04:05Z", "percent": 25, "seconds": 5.0})
    state = judged(judge(), look(0, ZERO), look(1, ZERO), state=future)
    assert StepEvidence.of(state.learnt).seconds == 65


@pytest.mark.parametrize("has_slo", [False, True])
def test_a_step_in_which_nothing_could_be_compared_stays_and_stalls(has_slo: bool) -> None:
    by = judge(has_slo=has_slo, judge={"errors": False})
    alike = counts((MANY, 0), (3 * MANY, 0))
    state = judged(by, look(0, ZERO), *(look(n, alike) for n in range(1, 21)))
    step = StepEvidence.of(state.learnt)
    assert (state.step, state.verdict, by.is_stalled(step)) == (0, None, True)


def test_the_speed_alone_shows_a_worse_revision_and_promotes_none() -> None:
    by = judge(judge={"errors": False})
    assert by.signals == ()
    alike = judged(by, *at_speed(1.0))
    assert (alike.step, alike.verdict, alike.learnt["speedCompared"]) == (0, None, True)
    worse = judged(by, *at_speed(1.3))
    assert (worse.verdict, worse.why[:30]) == ("worse", "pool mixed: a step without pro")


def test_one_client_that_always_fails_is_no_worse_revision() -> None:
    """It fails each minute of an hour, among 1,000 others that do not; a router counts them."""
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    sides = {new: (router_engine("e", "b" if new else "a"),) for new in (True, False)}

    def ask(name: str, status: int = 200) -> None:
        key = CanaryKey(name.encode())
        attempt(counted, key, sides[goes_to_new(SHARES, key)], SHARES, status=status)

    looks = [look(0, *filter(None, [counted.counts(SHARES)]))]
    client = next(n for n in map(str, range(99)) if goes_to_new(SHARES, CanaryKey(n.encode())))
    for minute in range(60):
        ask(client, status=500)
        for other in range(1000 * minute // 60, 1000 * (minute + 1) // 60):
            ask(f"other {other}")
        clock.now += MINUTE_SECONDS
        looks.append(look(minute + 1, *filter(None, [counted.counts(SHARES)])))
    state = judged(judge(minutes=90), *looks)
    assert (state.verdict, totals(state)[1::2]) == (None, (1, 0))


def test_nothing_is_no_rate() -> None:
    assert rates_text("errors", Evidence()) == "errors: no requests yet"
