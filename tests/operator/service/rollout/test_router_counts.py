"""What routers count is read by their epochs: begun anew, missing, of other steps, and bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.router_counts import counts_of
from sluice_operator.service.rollout.step import LEVEL, StepEvidence
from sluice_router.canary import revisions_of

from tests.operator.service.rollout.canary_world import (
    ZERO,
    counts,
    judge,
    judged,
    look,
    seen,
    totals,
)

SAMPLES = {"r1": 0.5, "r2": 0.25}


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


def test_the_share_of_the_keys_that_is_counted_is_named() -> None:
    routers = [counts((9, 0), (9, 0), name, key_share=part) for name, part in SAMPLES.items()]
    text = judge().text(StepEvidence.of(judged(judge(), look(0, *routers)).learnt))
    assert text.endswith("; routers count 25% of the keys")
    assert "of the keys" not in judge().text(StepEvidence.of(judged(judge(), look(0, ZERO)).learnt))


def test_one_key_with_many_requests_is_named() -> None:
    state = judged(judge(), look(0, counts((9, 0), (9, 0), heavy_share=0.4)))
    assert (
        judge()
        .text(StepEvidence.of(state.learnt))
        .endswith("one key has 40% of the canary's requests")
    )
