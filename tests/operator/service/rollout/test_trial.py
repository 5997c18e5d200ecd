"""The operator judges a canary's step: by what routers count, over the same time on both sides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts
from sluice_operator.api.scaling import CanarySpec
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import CanaryState, canary_state
from sluice_operator.service.rollout.trial import LEVEL, CanaryView, StepJudge, Trial
from sluice_router.canary import revisions_of

from tests.operator.service.rollout.canary_world import counts, engine, look, pod, view

MANY = 20_000
ZERO = counts((0, 0), (0, 0))


def judge(has_slo: bool = False, **spec: Any) -> StepJudge:
    fields = {"steps": [25, 50], "minutes": 2} | spec
    return StepJudge(CanarySpec.model_validate(fields), has_slo)


def judged(by: StepJudge, *looks: Look, state: CanaryState | None = None) -> CanaryState:
    """The state after these looks, each read back from what was written."""
    present = state or CanaryState()
    for number in range(len(looks)):
        after = by.after(present, view(*looks[: number + 1]))
        present = canary_state(json.loads(json.dumps(after.to_json_dict())))
    return present


def totals(state: CanaryState) -> tuple[int, int, int, int]:
    """Trials and bad ones of the new and of the former revision."""
    evidence = Trial.of(state.learnt).evidence["errors"]
    new, former = evidence.new, evidence.former
    return new.trials, new.bad, former.trials, former.bad


def test_equal_revisions_go_to_the_next_step_and_then_to_all() -> None:
    alike = counts((MANY, 20), (3 * MANY, 60))
    assert judged(judge(), look(0, ZERO), look(1, alike)).step == 0, "minutes have not passed"
    second = judged(judge(), look(0, ZERO), look(1, alike), look(2, alike))
    assert (second.step, second.verdict) == (1, None)
    assert second.why.startswith("20,000 of about ")
    assert "errors 0.1 % against 0.1 %; 2 of 2 minutes" in second.why
    more = counts((2 * MANY, 40), (6 * MANY, 120))
    third = judged(judge(), look(2, alike), look(4, more), state=second)
    assert (third.step, third.verdict) == (1, "promoted")


@pytest.mark.parametrize(("on_worse", "verdict"), [("Halt", "worse"), ("Hold", "held")])
def test_a_revision_with_more_errors_is_worse(on_worse: str, verdict: str) -> None:
    bad = counts((640, 32), (2560, 3))
    state = judged(judge(on_worse=on_worse), look(0, ZERO), look(1, bad))
    assert (state.step, state.verdict) == (0, verdict)
    assert state.why == "errors 5.0 % against 0.1 %"
    later = judge(on_worse=on_worse).after(state, view(look(9, counts((MANY, 32), (MANY, 3)))))
    assert later == state, "a verdict stays"


def test_the_first_look_of_a_step_is_its_beginning() -> None:
    before = counts((640, 32), (2560, 3))
    state = judged(judge(), look(0, before))
    assert Trial.of(state.learnt).evidence == {}
    state = judged(judge(), look(1, counts((650, 32), (2600, 4))), state=state)
    assert totals(state) == (10, 0, 40, 1)


def test_a_router_that_restarts_begins_anew_and_one_without_an_answer_is_left_out() -> None:
    both = [counts((10, 0), (30, 0), "r1"), counts((5, 0), (15, 1), "r2")]
    one = [counts((20, 1), (60, 0), "r1")]
    again = [counts((20, 1), (60, 0), "r1"), counts((9, 0), (27, 1), "r2")]
    restarted = [counts((20, 1), (60, 0), "r1"), counts((2, 0), (6, 0), "r2a")]
    looks = [look(n, *routers) for n, routers in enumerate((both, one, again, restarted))]
    expected = [(10, 1, 30, 0), (14, 1, 42, 0), (16, 1, 48, 0)]
    for number, total in enumerate(expected, 2):
        assert totals(judged(judge(), *looks[:number])) == total


def test_a_counter_that_goes_back_has_begun_anew() -> None:
    state = judged(judge(), look(0, ZERO), look(1, counts((9, 0), (27, 0))))
    state = judged(judge(), look(2, counts((2, 1), (6, 0))), state=state)
    assert totals(state) == (11, 1, 33, 0)


def test_counts_of_other_revisions_say_nothing() -> None:
    other = counts((640, 32), (2560, 3), revision="c")
    state = judged(judge(), look(0, ZERO), look(1, other))
    assert (state.verdict, Trial.of(state.learnt).evidence) == (None, {})


def test_routers_name_the_revisions_of_two_pools_as_the_operator_does() -> None:
    shares = {Role.PREFILL: CanaryShare("p2", "p1", 25), Role.DECODE: CanaryShare("d1", "d1", 25)}
    new, former = revisions_of(shares)
    answer = look(0, counts((9, 0), (9, 0), revision=new, former=former))
    assert CanaryView(shares, looks=(answer,)).counts().keys() == {"r1"}


def test_counts_are_recorded_once_a_minute() -> None:
    state = judged(judge(), look(0, ZERO))
    after = judge().after(state, view(look(0.9, counts((9, 0), (27, 0)))))
    assert after == state
    assert judge().after(state, view(look(1, ZERO))) != state


def test_a_second_try_counts_nothing_of_the_first() -> None:
    bad = counts((640, 32), (2560, 3))
    worse = judged(judge(), look(0, ZERO), look(1, bad))
    again = worse.after(CanaryState(decision=1))
    assert (again.verdict, again.step) == (None, 0)
    state = judged(judge(), look(5), look(6, counts((650, 32), (2600, 3))), state=again)
    assert (state.verdict, *totals(state)) == (None, 10, 0, 40, 0)


def test_without_requests_a_step_is_stalled_after_ten_times_its_minutes() -> None:
    state = judged(judge(), look(0, ZERO), *(look(n, ZERO) for n in range(1, 20)))
    assert not judge().is_stalled(Trial.of(state.learnt))
    state = judged(judge(), look(20, ZERO), state=state)
    trial = Trial.of(state.learnt)
    assert (state.verdict, judge().is_stalled(trial)) == (None, True)
    assert judge().text(trial).startswith("0 of about ")


def test_the_level_is_divided_over_signals_and_steps() -> None:
    assert judge().judge().level == LEVEL / 2
    assert judge(has_slo=True).judge().level == LEVEL / 4
    assert judge(steps=[5], judge={"slo": False}, has_slo=True).judge().level == LEVEL
    assert judge(judge={"marginPoints": 20}).judge().margin == pytest.approx(0.02)


def late(new: tuple[int, int], former: tuple[int, int]) -> CanaryCounts:
    """A router's counts of timed trials and late ones; none failed."""
    base = counts((new[0], 0), (former[0], 0))
    sides = {
        name: replace(getattr(base, name), timed=timed, late=late)
        for name, (timed, late) in (("new", new), ("old", former))
    }
    return base.model_copy(update=sides)


@pytest.mark.parametrize(
    ("requests", "warm", "queue", "verdict"),
    [(50, 5, 4, "worse"), (50, 5, 24, "worse"), (50, 3, 4, None), (70, 5, 4, None)],
    ids=["alike", "a queue of its own", "cold", "more requests"],
)
def test_late_answers_count_in_warm_engines_without_more_requests(
    requests: int, warm: int, queue: int, verdict: str | None
) -> None:
    def seen(minute: float, counted: CanaryCounts) -> Look:
        new, former = (round(minute * number) for number in (requests, 50))
        sides = (
            engine("b", finished_requests_total=new, running_requests=queue),
            engine("a", finished_requests_total=former, running_requests=8),
        )
        return look(minute, counted, engines=sides)

    bad = late((640, 64), (2560, 3))
    state = judged(judge(has_slo=True), seen(0, ZERO), seen(warm, ZERO), seen(warm + 1, bad))
    assert state.verdict == verdict
    assert state.why == ("late answers 10.0 % against 0.1 %" if verdict else "")


def test_an_engine_that_ends_twice_is_worse_at_once() -> None:
    state = judge().after(CanaryState(), view(pods=(pod("b-1", restarts=3),)))
    assert state.verdict is None, "before the step began"
    state = judge().after(state, view(pods=(pod("b-1", restarts=5),)))
    assert (state.verdict, state.why) == ("worse", "pod b-1 has ended 2 times")
    by_slo = judge(judge={"errors": False}, has_slo=True)
    assert by_slo.after(CanaryState(), view(pods=(pod("b-1", restarts=3),))).learnt == {}


def test_one_key_with_many_requests_is_named() -> None:
    state = judged(judge(), look(0, counts((9, 0), (9, 0), heavy_share=0.4)))
    assert judge().text(Trial.of(state.learnt)).endswith("one key has 40% of the canary's requests")


@pytest.mark.parametrize(
    "learnt",
    [
        {"began": "yesterday", "looked": "2026-01-02T03:04:05Z"},
        {"began": "2026-01-02T03:04:05Z"},
        {"seen": {"r1": ["many"]}},
        {"seen": 5},
        {"evidence": {"errors": {"new": 1}}},
        {"pods": {"b-1": [1, 2, 3, 4]}},
    ],
)
def test_what_somebody_has_broken_begins_anew(learnt: dict[str, Any]) -> None:
    assert Trial.of(learnt) == Trial()


@pytest.mark.parametrize("has_slo", [False, True])
def test_a_step_in_which_nothing_could_be_compared_stays(has_slo: bool) -> None:
    by = judge(has_slo=has_slo, judge={"errors": False})
    alike = counts((MANY, 0), (3 * MANY, 0))
    state = judged(by, look(0, ZERO), look(9, alike))
    assert (state.step, state.verdict) == (0, None)
