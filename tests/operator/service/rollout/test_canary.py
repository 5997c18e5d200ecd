"""Canaries: a new revision gets a share of requests on engines of its own, and all former engines
stay, until a person has decided."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_operator.api.scaling import CanarySpec
from sluice_operator.service.report.progressing import SHOWN_ROLLOUTS
from sluice_operator.service.revisions.canary_state import ENDED, CanaryState, CanaryVerdict
from sluice_operator.service.rollout.canary import Canary, engines_of_share
from sluice_operator.service.rollout.in_place import plan_in_place
from sluice_operator.service.rollout.surge import PoolState, Rollout, RolloutRevision, plan_rollout

from tests.examples import examples
from tests.operator.service.rollout.canary_world import BEGAN, counts, engine, look, pod

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
STABLE = {MIXED: "a"}


def full(name: str, count: int) -> RolloutRevision:
    """A revision with all its engines ready."""
    return RolloutRevision(name, count, count, count, settled=True)


def canary(step: int = 0, verdict: CanaryVerdict | None = None, **spec: Any) -> Canary:
    return Canary(CanarySpec(**{"steps": [25, 50]} | spec), CanaryState(step, verdict))


def ready(count: int, name: str = "b") -> RolloutRevision:
    """A revision of which so many engines are ready."""
    return RolloutRevision(name, count, count, count)


def plan(present: Canary, replicas: int, desired: RolloutRevision | None = None) -> Rollout:
    """The plan of a pool with a complete revision `a`."""
    new = desired or RolloutRevision("b", is_tried=False)
    pools = (PoolState(MIXED, replicas, new, (full("a", replicas),)),)
    assert present.is_open(pools, STABLE)
    return present.plan(pools, STABLE)


@pytest.mark.parametrize(
    ("replicas", "percent", "engines"),
    [(1, 1, 1), (3, 25, 1), (4, 25, 2), (40, 25, 14), (8, 50, 8)],
)
def test_a_canary_has_its_share_of_engines_beside_all_former_ones(
    replicas: int, percent: int, engines: int
) -> None:
    rollout = plan(canary(steps=[percent]), replicas, ready(engines))
    assert rollout.shares == {MIXED: {"b": engines, "a": replicas}}
    assert rollout.canary == {MIXED: CanaryShare("b", "a", percent)}
    assert (rollout.reason, rollout.stable) == ("CanaryStep", STABLE)


@given(replicas=st.integers(0, 99), percent=st.integers(1, 50))
@examples(200)
def test_no_canary_engine_gets_more_requests_than_a_former_one(replicas: int, percent: int) -> None:
    engines = engines_of_share(percent, replicas)
    assert percent * replicas <= (100 - percent) * engines
    assert not engines or percent * replicas > (100 - percent) * (engines - 1), "no more"
    assert engines <= replicas


@pytest.mark.parametrize(
    ("engines", "percent"), [(0, 0), (2, 5), (6, 5), (7, 25), (19, 25), (20, 50)]
)
def test_the_share_is_that_of_the_largest_step_whose_engines_are_ready(
    engines: int, percent: int
) -> None:
    rollout = plan(canary(step=2, steps=[5, 25, 50]), 20, ready(engines))
    assert rollout.shares == {MIXED: {"b": 20, "a": 20}}
    assert rollout.canary == {MIXED: CanaryShare("b", "a", percent)}
    assert rollout.reason == ("CanaryStep" if percent == 50 else "RollingOut")
    assert rollout.is_judged is (percent > 0)
    text = f"Step 3 of 3, {percent} % of requests go to the new revision"
    until = " until its engines for 50 % are ready: "
    assert rollout.message.startswith(
        text + (", nothing is counted yet (`" if percent == 50 else until)
    )


@pytest.mark.parametrize(
    ("replicas", "engines", "percent", "reason"),
    [
        (3, 1, 25, "CanaryStep"),
        (5, 1, 12, "CanaryStep"),
        (40, 9, 25, "CanaryStep"),
        (40, 8, 12, "CanaryStep"),
        (40, 4, 12, "CanaryStep"),
        (40, 3, 0, "RollingOut"),
        (40, 0, 0, "RollingOut"),
    ],
)
def test_a_share_that_was_reached_stays_or_halves_with_the_engines_that_are_ready(
    replicas: int, engines: int, percent: int, reason: str
) -> None:
    step = replace(canary(), state=CanaryState(reached=1))
    rollout = plan(step, replicas, ready(engines))
    assert rollout.canary == {MIXED: CanaryShare("b", "a", percent)}
    assert (rollout.reason, rollout.is_judged) == (reason, percent > 0)
    missing = "go to the new revision while engines for 25 % are missing"
    assert (missing in rollout.message) is (0 < percent < 25)
    after = replace(canary(), state=CanaryState(step=1, reached=1))
    rollout = plan(after, replicas, ready(engines))
    assert rollout.canary == {MIXED: CanaryShare("b", "a", percent)}
    assert rollout.reason == "RollingOut", "a larger share waits for its engines"


@pytest.mark.parametrize(("replicas", "percent"), [(9, 10), (10, 10), (13, 10), (14, 5)])
def test_a_pool_that_grows_by_up_to_a_half_keeps_the_share_of_its_canary(
    replicas: int, percent: int
) -> None:
    """One engine is enough beside 9, and the second one is not ready yet."""
    step = Canary(CanarySpec(steps=[10]), CanaryState(reached=1))
    assert plan(step, replicas, ready(1)).canary == {MIXED: CanaryShare("b", "a", percent)}


BELOW = Canary(CanarySpec(steps=[25, 50], minutes=2), CanaryState(step=1, reached=1))
MANY = 20_000


@pytest.mark.parametrize(("bad", "verdict"), [(MANY, "worse"), (0, None)])
def test_a_share_below_that_of_the_step_can_only_be_found_worse(
    bad: int, verdict: str | None
) -> None:
    """Engines for the second step are on their way, or wait for the budget."""
    present, looks = BELOW, [look(0, counts((0, 0), (0, 0)))]
    pods = [pod(f"b-{number}", ready="2026-01-01") for number in range(3)]
    for minute in range(1, 9):
        looks.append(look(minute, counts((MANY * minute, bad * minute), (3 * MANY * minute, 0))))
        rollout = plan(present, 8, ready(3))
        assert (rollout.reason, rollout.is_judged) == ("RollingOut", True)
        after = present.judged(rollout, pods, (*looks,)).learnt
        present = replace(present, state=after or present.state)
        if present.state.verdict:
            break
    assert (present.state.step, present.state.verdict) == (1, verdict)
    assert "seconds" not in present.state.learnt, "no time of the step has passed"
    rollout = plan(present, 8, ready(3))
    assert rollout.reason == ("CanaryWorse" if verdict else "RollingOut")


@pytest.mark.parametrize(("engines", "reason"), [(7, "CanaryStep"), (1, "RollingOut")])
def test_less_than_half_of_a_reached_share_is_not_at_the_step(engines: int, reason: str) -> None:
    """Steps of 1 and 50 %: with one of ten engines the share is 1 %."""
    present = Canary(CanarySpec(steps=[1, 50]), CanaryState(step=1, reached=2))
    rollout = plan(present, 10, ready(engines))
    assert (rollout.reason, rollout.is_judged) == (reason, True)


@pytest.mark.parametrize("verdict", [None, "held"])
def test_a_canary_sleeps_where_no_engines_are_asked_for(verdict: CanaryVerdict | None) -> None:
    present = replace(canary(), state=CanaryState(verdict=verdict, reached=1))
    rollout = plan(present, 0, ready(0))
    assert rollout.canary == {MIXED: CanaryShare("b", "a", 0)}
    assert rollout.reason == "CanaryAsleep"
    assert rollout.message.endswith(
        "Step 1 of 2 waits, as no engines of pool mixed are asked for (`sluice rollout promote "
        "--full`: all at once, `abort`: none)."
    )
    assert plan(canary(verdict="worse"), 0, ready(0)).reason == "CanaryWorse"


def test_a_canary_sleeps_where_its_own_pool_alone_has_no_engines() -> None:
    pools = tuple(replace(pool, replicas=2 * number) for number, pool in enumerate(two_pools()))
    rollout = canary().plan(pools, {PREFILL: "p1", DECODE: "d1"})
    assert rollout.reason == "CanaryAsleep"
    assert "no engines of pool prefill are asked for" in rollout.message


@pytest.mark.parametrize(
    ("signals", "counts"),
    [({"errors": False, "slo": False}, ""), ({"errors": False}, ", nothing is counted yet")],
)
def test_a_canary_that_nothing_promotes_waits_for_a_person(
    signals: dict[str, bool], counts: str
) -> None:
    rollout = plan(canary(judge=signals), 4, ready(2))
    assert rollout.reason == "CanaryWaits"
    assert rollout.message.startswith(
        f"Step 1 of 2, 25 % of requests go to the new revision{counts}, and a person decides "
        "(`sluice rollout promote`: 50 %, `abort`: none)."
    )


@pytest.mark.parametrize(("engines", "reason"), [(2, "CanaryWorse"), (0, "RollingOut")])
def test_a_held_canary_is_worse_while_it_gets_requests(engines: int, reason: str) -> None:
    present = replace(canary(), state=CanaryState(verdict="held", why="slow", reached=1))
    rollout = plan(present, 4, ready(engines))
    assert rollout.reason == reason
    assert rollout.message.startswith("The canary is worse, and stays: slow. Step 1 of 2, ")


def test_a_stalled_canary_says_how_long_it_had_no_verdict() -> None:
    learnt = {"looked": f"{BEGAN:%Y-%m-%dT%H:%M:%SZ}", "seconds": 6000.0}
    rollout = plan(replace(canary(), state=CanaryState(learnt=learnt)), 4, ready(2))
    assert rollout.reason == "CanaryStalled"
    assert "go to the new revision, without a verdict after 100 minutes, " in rollout.message


def test_of_two_pools_the_share_waits_for_the_engines_of_both() -> None:
    roles = {PREFILL: ready(2, "p2"), DECODE: ready(1, "d2")}
    pools = tuple(
        PoolState(role, 6, new, (full(new.name[0] + "1", 6),)) for role, new in roles.items()
    )
    rollout = canary(steps=[10, 25], step=1).plan(pools, {PREFILL: "p1", DECODE: "d1"})
    assert rollout.canary == {
        PREFILL: CanaryShare("p2", "p1", 10),
        DECODE: CanaryShare("d2", "d1", 10),
    }


def test_a_complete_canary_of_a_single_engine_ends_nothing() -> None:
    rollout = plan(canary(), 1, full("b", 1))
    assert (rollout.shares, rollout.stable) == ({MIXED: {"b": 1, "a": 1}}, STABLE)


def test_the_message_says_the_step_the_engines_and_what_comes_next() -> None:
    assert plan(canary(), 3, full("b", 1)).message == (
        "Step 1 of 2, 25 % of requests go to the new revision, nothing is counted yet "
        "(`sluice rollout promote`: 50 %, `abort`: none)."
    )
    assert plan(canary(), 4, ready(1)).message == (
        "Step 1 of 2, 0 % of requests go to the new revision until its engines for 25 % are ready: "
        "pool mixed: 1 of 2 engines of revision b ready, 4 of 4 of a."
    )
    assert "`sluice rollout promote`: all" in plan(canary(step=1), 4, full("b", 4)).message
    fewer = plan(canary(step=4, steps=[10]), 4, full("b", 1))
    assert "Step 1 of 1, 10 %" in fewer.message, "fewer steps now"


def test_the_stable_engines_follow_the_need_and_the_canary_its_share() -> None:
    for replicas in (2, 9):
        pool = PoolState(MIXED, replicas, full("b", 1), (full("a", 4),))
        rollout = canary().plan((pool,), STABLE)
        assert rollout.shares[MIXED] == {"b": ceil(replicas / 3), "a": replicas}


@pytest.mark.parametrize("verdict", ["aborted", "worse", "late"])
def test_the_engines_of_a_canary_that_has_ended_go(verdict: CanaryVerdict) -> None:
    rollout = plan(canary(verdict=verdict), 4, full("b", 1))
    assert rollout.shares == {MIXED: {"b": 0, "a": 4}}
    assert rollout.canary == {MIXED: CanaryShare("b", "a", 0)}
    reasons = {"aborted": "CanaryAborted", "worse": "CanaryWorse", "late": "CanaryLate"}
    assert rollout.reason == reasons[verdict]
    assert rollout.message.endswith(
        ": all requests go to the former revision; apply the former spec to end this, or "
        "`sluice rollout promote NAME` to try the new one again."
    )


def test_engines_that_are_late_end_the_canary_once_that_is_recorded() -> None:
    late = RolloutRevision("b", 1, is_late=True)
    rollout = plan(canary(), 3, late)
    assert rollout.learnt == CanaryState(verdict="late", why="its engines were not ready in time")
    assert rollout.shares == {MIXED: {"b": 1, "a": 3}}
    pods = [pod("b-1"), pod("a-1", revision="a")]
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    for each, message in zip(pods, ("0/3 nodes.", "other"), strict=True):
        each["status"]["conditions"] = [scheduled | {"message": message}]
    learnt = canary().judged(rollout, pods, ()).learnt
    assert learnt is not None
    assert learnt.why == (
        "its engines were not ready in time (pod b-1: no node takes it (0/3 nodes))"
    )
    assert plan(canary(on_worse="Hold"), 4, late).learnt is None
    reached = replace(canary(), state=CanaryState(reached=1))
    rollout = plan(reached, 4, replace(late, ready=1))
    assert (rollout.learnt, rollout.is_judged) == (None, True), "one of an autoscaled pool waits"
    assert plan(canary(verdict="aborted"), 4, late).learnt is None


def test_there_is_no_canary_without_a_complete_revision_or_once_promoted() -> None:
    new, former = RolloutRevision("b"), full("a", 2)
    assert not canary().is_open((PoolState(MIXED, 2, new),), STABLE), "it is gone"
    assert not canary().is_open((PoolState(MIXED, 2, new, (former,)),), {})
    assert not canary().is_open((PoolState(MIXED, 2, former, (new,)),), STABLE)
    promoted = canary(verdict="promoted")
    assert not promoted.is_open((PoolState(MIXED, 2, new, (former,)),), STABLE)


def labels_beside(present: Canary, *pools: PoolState) -> list[str]:
    """The pools' labels beside another plan than the canary's own."""
    assert not present.is_open(pools, STABLE)
    planned = present.with_shares(plan_rollout(pools, STABLE), pools, STABLE)
    return [share.label for share in planned.canary.values()]


@pytest.mark.parametrize("fewer", [0, 1])
def test_after_an_undo_the_former_engines_have_all_requests_until_the_others_are_gone(
    fewer: int,
) -> None:
    stable = replace(full("a", 4), ready=4 - fewer, settled=not fewer)
    assert labels_beside(canary(), PoolState(MIXED, 4, stable, (full("b", 1),))) == ["a.a.0"]
    leaving = replace(full("b", 0), ready=1, settled=False)
    assert labels_beside(canary(), PoolState(MIXED, 4, stable, (leaving,))) == ["a.a.0"]
    assert labels_beside(canary(), PoolState(MIXED, 4, stable, (full("b", 0),))) == []
    assert labels_beside(canary(), PoolState(MIXED, 4, stable)) == []


def test_a_third_revision_has_its_share_beside_the_stable_one_alone() -> None:
    pools = (PoolState(MIXED, 4, RolloutRevision("c"), (full("a", 4), full("b", 1))),)
    assert canary().plan(pools, STABLE).canary == {MIXED: CanaryShare("c", "a", 0)}


def test_a_promoted_canary_keeps_its_last_share_until_it_is_complete() -> None:
    promoted = canary(step=1, verdict="promoted")
    former = full("a", 4)
    for engines, label in ((0, "b.a.0"), (2, "b.a.25"), (3, "b.a.25"), (4, "b.a.50")):
        pool = PoolState(MIXED, 4, ready(engines), (former,))
        assert labels_beside(promoted, pool) == [label], engines
    pools = (PoolState(MIXED, 4, full("b", 4), (former,)),)
    complete = {MIXED: "b"}
    planned = promoted.with_shares(plan_rollout(pools, complete), pools, complete)
    assert planned.canary == {MIXED: CanaryShare("b", "b", 0)}, "until the former engines are gone"


def test_requests_follow_the_engines_where_the_former_ones_make_way_one_by_one() -> None:
    pools = (PoolState(MIXED, 4, ready(2), (full("a", 3),)),)
    promoted = canary(step=1, verdict="promoted")
    assert promoted.with_shares(plan_in_place(pools, STABLE), pools, STABLE).canary == {}


@pytest.mark.parametrize("verdict", ["aborted", "worse", "late"])
def test_a_canary_that_has_ended_has_no_label_once_its_engines_are_gone(
    verdict: CanaryVerdict,
) -> None:
    over = canary(verdict=verdict)
    leaving = RolloutRevision("b", 0, settled=False)
    assert plan(over, 4, leaving).canary == {MIXED: CanaryShare("b", "a", 0)}
    assert plan(over, 4, full("b", 0)).canary == {}
    assert plan(over, 4).canary == {}
    assert plan(over, 4).is_ended


def two_pools(replicas: int = 4) -> tuple[PoolState, ...]:
    """Of prefill another revision is desired, of decode the same."""
    prefill = PoolState(PREFILL, replicas, RolloutRevision("p2"), (full("p1", replicas),))
    return prefill, PoolState(DECODE, replicas, full("d1", replicas))


def test_a_pool_that_is_not_changed_serves_both_revisions() -> None:
    stable = {PREFILL: "p1", DECODE: "d1"}
    prefill, decode = two_pools()
    prefill = replace(prefill, desired=ready(2, "p2"))
    rollout = canary().plan((prefill, decode), stable)
    assert rollout.shares == {PREFILL: {"p2": 2, "p1": 4}, DECODE: {"d1": 4}}
    labels = {role: share.label for role, share in rollout.canary.items()}
    assert labels == {PREFILL: "p2.p1.25", DECODE: "d1.d1.25"}


def test_pools_that_cannot_work_together_are_named() -> None:
    prefill, decode = two_pools()
    prefill = replace(prefill, desired=replace(prefill.desired, fingerprint="int8"))
    decode = replace(decode, desired=replace(decode.desired, fingerprint="auto"))
    rollout = canary().plan((prefill, decode), {PREFILL: "p1", DECODE: "d1"})
    assert rollout.reason == "NoPair"
    assert rollout.reason in SHOWN_ROLLOUTS, "it becomes the reason of Progressing"
    assert "cannot work together" in rollout.message


revisions = st.builds(
    RolloutRevision,
    name=st.just("b"),
    replicas=st.integers(0, 9),
    ready=st.integers(0, 9),
    stopped=st.booleans(),
    is_late=st.booleans(),
)
states = st.builds(CanaryState, step=st.integers(0, 3), verdict=st.sampled_from([None, *ENDED]))


@given(new=revisions, state=states, replicas=st.integers(0, 9), ready=st.integers(0, 9))
@examples(200)
def test_whatever_becomes_of_a_canary_all_former_engines_stay(
    new: RolloutRevision, state: CanaryState, replicas: int, ready: int
) -> None:
    former = RolloutRevision("a", replicas, ready)
    present = Canary(CanarySpec(steps=[5, 25]), state)
    planned = present.plan((PoolState(MIXED, replicas, new, (former,)),), STABLE)
    assert planned.shares[MIXED]["a"] == replicas
    assert planned.stable == STABLE


@pytest.mark.parametrize(("readiness", "signals"), [("2026-01-01", 2), ("", 1)])
def test_late_answers_do_not_count_while_an_engine_is_missing(readiness: str, signals: int) -> None:
    """The ready ones get its requests, too."""
    learnt = {"looked": f"{BEGAN:%Y-%m-%dT%H:%M:%SZ}", "seconds": 600.0}
    present = Canary(CanarySpec(steps=[25]), CanaryState(learnt=learnt), has_slo=True)
    sides = [
        [engine(name, finished_requests_total=99 * number) for name in "ab"] for number in (0, 1)
    ]
    looks = tuple(look(n, counts((9, 0), (9, 0)), engines=(*e,)) for n, e in enumerate(sides))
    pods = (pod("b-1", ready="2026-01-01"), pod("b-2", ready=readiness))
    after = present.judged(plan(present, 6, ready(2)), pods, looks).learnt
    assert after is not None
    assert len(after.learnt["evidence"]) == signals
