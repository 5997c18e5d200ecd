"""The operator judges a canary's step: by what routers count, over the same time on both sides."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts, SideCounts, StepCosts, StepShapes, TrialCounts
from sluice_operator.api.scaling import CanarySpec
from sluice_operator.scaled import LOOKS, Look
from sluice_operator.service.revisions.canary_state import CanaryState, canary_state
from sluice_operator.service.rollout.judge import Evidence
from sluice_operator.service.rollout.router_counts import counts_of
from sluice_operator.service.rollout.step import LEVEL, CanaryJudge, StepEvidence, rates_text
from sluice_router.canary import CanaryKey, goes_to_new, revisions_of
from sluice_router.engines import Fleet
from sluice_router.trials import MINUTE_SECONDS, Trials

from tests.operator.service.rollout.canary_world import SHARES, counts, engine, look, pod, seen
from tests.router.test_canary import engine as router_engine
from tests.router.test_trial_minutes import attempt
from tests.router.test_trials import Clock

MANY = 20_000
SAMPLES = {"r1": 0.5, "r2": 0.25}
ZERO = counts((0, 0), (0, 0))


def judge(has_slo: bool = False, **spec: Any) -> CanaryJudge:
    fields: dict[str, Any] = {"steps": [25, 50], "minutes": 2} | spec
    fields["judge"] = {"marginPoints": 5} | fields.get("judge", {})
    return CanaryJudge(CanarySpec.model_validate(fields), has_slo)


def judged(by: CanaryJudge, *looks: Look, state: CanaryState | None = None) -> CanaryState:
    """The state after these looks, each read back from what was written."""
    present = state or CanaryState()
    for number in range(len(looks)):
        after = by.after(present, *seen(*looks[: number + 1]))
        present = canary_state(json.loads(json.dumps(after.to_json_dict())))
    return present


def totals(state: CanaryState) -> tuple[int, int, int, int]:
    """Trials and bad ones of the new and of the former revision."""
    evidence = StepEvidence.of(state.learnt).evidence["errors"]
    new, former = evidence.new, evidence.former
    return new.trials, new.bad, former.trials, former.bad


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


def test_the_first_look_of_a_step_is_its_beginning() -> None:
    before = counts((640, 32), (2560, 3))
    state = judged(judge(), look(0, before))
    assert StepEvidence.of(state.learnt).evidence == {}
    state = judged(judge(), look(1, counts((650, 32), (2600, 4))), state=state)
    assert totals(state) == (10, 0, 40, 1)


def test_a_router_that_restarts_begins_anew_and_one_without_an_answer_is_left_out() -> None:
    both = [counts((10, 0), (30, 0), "r1"), counts((5, 0), (15, 1), "r2")]
    one = [counts((20, 1), (60, 0), "r1")]
    again = [counts((20, 1), (60, 0), "r1"), counts((9, 0), (27, 1), "r2")]
    restarted = [counts((20, 1), (60, 0), "r1"), counts((2, 0), (6, 0), "r2a")]
    answers = (both, one, again, restarted)
    looks = [look(n, *routers, asked=2) for n, routers in enumerate(answers)]
    expected = [(10, 1, 30, 0), (14, 1, 42, 0), (16, 1, 48, 0)]
    for number, total in enumerate(expected, 2):
        assert totals(judged(judge(), *looks[:number])) == total


def test_a_counter_that_goes_back_has_begun_anew() -> None:
    state = judged(judge(), look(0, ZERO), look(1, counts((9, 0), (27, 0))))
    state = judged(judge(), look(2, counts((2, 1), (6, 0))), state=state)
    assert totals(state) == (11, 1, 33, 0)


def test_counts_of_a_router_that_do_not_add_up_are_bounded() -> None:
    odd = counts((10, 12), (30, 40))
    state = judged(judge(), look(0, ZERO), look(1, odd))
    assert totals(state) == (10, 10, 30, 30)


@pytest.mark.parametrize("step", [{"revision": "c"}, {"former": "c"}, {"percent": 10}])
def test_counts_of_other_revisions_or_of_another_percent_say_nothing(step: Any) -> None:
    other = counts((640, 32), (2560, 3), **step)
    state = judged(judge(), look(0, ZERO), look(1, other))
    assert (state.verdict, StepEvidence.of(state.learnt).evidence) == (None, {})


def test_routers_name_the_revisions_of_two_pools_as_the_operator_does() -> None:
    shares = {Role.PREFILL: CanaryShare("p2", "p1", 25), Role.DECODE: CanaryShare("d1", "d1", 25)}
    new, former = revisions_of(shares)
    answer = look(0, counts((9, 0), (9, 0), revision=new, former=former))
    assert counts_of(answer, shares).keys() == {"r1"}


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


def test_counts_that_another_release_has_recorded_are_a_beginning() -> None:
    state = judged(judge(), look(0, ZERO), look(1, ZERO))
    state = replace(state, learnt={**state.learnt, "seen": {"r1": [500, 0, 1500, 0]}})
    state = judged(judge(), look(2, counts((640, 32), (2560, 3))), state=state)
    state = judged(judge(), look(3, counts((650, 32), (2600, 3))), state=state)
    assert totals(state) == (10, 0, 40, 0)


@pytest.mark.parametrize(("recurs", "routers"), [(True, 2), (False, 1)])
def test_routers_count_as_one_where_no_key_recurs(recurs: bool, routers: int) -> None:
    """Each of such keys is seen by one of them."""
    looks = [
        look(n, *(counts((n, 0), (n, 0), epoch, recurs=recurs) for epoch in ("r1", "r2")))
        for n in (0, 1)
    ]
    state = judged(judge(), *looks)
    assert judge().signal_judge(StepEvidence.of(state.learnt)).routers == routers


def restarting(number: int, until: int) -> list[Look]:
    """Two routers each minute, which are replaced every fifth of the first ones."""
    looks = []
    for minute in range(number):
        start = min(minute, until) // 5 * 5
        keys = 90 * (minute - start)
        routers = (counts((keys, 0), (3 * keys, 0), f"{router}-{start}") for router in "ab")
        looks.append(look(minute, *routers))
    return looks


def test_routers_that_were_replaced_do_not_stop_a_promotion() -> None:
    by = judge(minutes=10, steps=[25])
    assert judged(by, *restarting(40, until=40)).verdict is None
    assert judged(by, *restarting(120, until=40)).verdict == "promoted"


def test_the_routers_of_a_step_are_bounded() -> None:
    by, state, sizes = judge(judge={"marginPoints": 1}), CanaryState(), set()
    for answer in restarting(60, until=60):
        state = by.after(state, *seen(answer))
        step = StepEvidence.of(state.learnt)
        sizes.add((len(step.seen), len(step.routers)))
    assert sizes == {(2, 0), (2, 2), (2, 4)}
    assert by.text(step).endswith("; begun anew 5 times, as routers or the share changed")
    assert by.signal_judge(step).level == LEVEL / 2 / 2**5, "each is another test"
    assert step.minutes == 59


def test_fewer_routers_than_before_drop_no_evidence() -> None:
    four = [counts((60, 0), (180, 0), f"r{number}") for number in range(4)]
    more = counts((99, 0), (297, 0), "r0")
    state = judged(judge(), look(0, *(ZERO,) * 4), look(1, *four), look(2, more))
    assert (StepEvidence.of(state.learnt).begun_anew, totals(state)) == (0, (279, 0, 837, 0))


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


def test_a_router_without_an_answer_is_not_counted_twice() -> None:
    numbers = [counts((9, 0), (9, 0), "r1"), counts((9, 0), (9, 0), "r2")]
    later = [counts((12, 0), (12, 0), "r1"), counts((12, 0), (12, 0), "r2")]
    answers = [numbers, numbers[:1], [], later]
    state = judged(judge(), *(look(n, *each, asked=2) for n, each in enumerate(answers)))
    assert totals(state) == (6, 0, 6, 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (look(0), "no router runs"),
        (look(0, ZERO, asked=3), "1 of 3 routers answer"),
        (look(0, ZERO, asked=3, answered=3), "2 of 3 routers do not count canaries"),
        (look(0, ZERO), "0 of at least 2 minutes"),
    ],
)
def test_why_nothing_is_counted_is_stated(answer: Look, text: str) -> None:
    assert judge().text(StepEvidence.of(judged(judge(), answer).learnt)).endswith(f"; {text}")


def test_a_step_without_any_router_stalls() -> None:
    state = judged(judge(), *map(look, range(21)))
    assert judge().is_stalled(StepEvidence.of(state.learnt))


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


def at_speed(ratio: float | None) -> list[Look]:
    """Looks at alike counts, and at engines of which the canary's takes so many times as long;
    None: they report no times."""

    def costs(seconds: float | None, number: int) -> StepCosts | None:
        shapes = StepShapes(steps=9 * number, mean=(1.0, 0.0, 0.0, 4.0, 9.0))
        return StepCosts(seconds=(seconds, 0, 0, 0, 0), decode=shapes) if seconds else None

    pairs = [
        (engine("b", costs=costs(ratio, n)), engine("a", costs=costs(ratio and 1.0, n)))
        for n in range(LOOKS)
    ]
    return [look(n, ALIKE_COUNTS if n else ZERO, engines=pair) for n, pair in enumerate(pairs)]


ALIKE_COUNTS = counts((MANY, 20), (3 * MANY, 60))


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


def test_the_share_of_the_keys_that_is_counted_is_named() -> None:
    routers = [counts((9, 0), (9, 0), name, key_share=part) for name, part in SAMPLES.items()]
    text = judge().text(StepEvidence.of(judged(judge(), look(0, *routers)).learnt))
    assert text.endswith("; routers count 25% of the keys")
    assert "of the keys" not in judge().text(StepEvidence.of(judged(judge(), look(0, ZERO)).learnt))


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


def test_one_key_with_many_requests_is_named() -> None:
    state = judged(judge(), look(0, counts((9, 0), (9, 0), heavy_share=0.4)))
    assert (
        judge()
        .text(StepEvidence.of(state.learnt))
        .endswith("one key has 40% of the canary's requests")
    )


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
