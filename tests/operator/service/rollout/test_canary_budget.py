"""Canaries within a budget of GPUs: their engines come last, and what status says of them stays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.cluster.labels import CanaryShare
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.rollout.gpu_budget import Budget, PodCounts, plan_within
from sluice_operator.service.rollout.surge import PoolState, Rollout, RolloutRevision

from tests.operator.service.rollout.test_canary import DECODE, MIXED, PREFILL, STABLE, canary, full


@pytest.mark.parametrize(("gpus", "engines"), [(3, 0), (4, 1)])
def test_a_canary_waits_for_the_budget_and_ends_nothing(gpus: int, engines: int) -> None:
    pools = (PoolState(MIXED, 3, RolloutRevision("b", is_tried=False), (full("a", 3),)),)
    budget = Budget(gpus, {MIXED: 1}, {MIXED: PodCounts({"a": 3}, 0)})
    rollout = plan_within(pools, STABLE, canary().plan, budget)
    assert rollout.shares == {MIXED: {"b": engines, "a": 3}}
    assert rollout.reason == ("RollingOut" if engines else "WaitsForBudget")
    assert rollout.canary == {MIXED: CanaryShare("b", "a", 0)}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (CanaryState(reached=1), "CanaryStep"),
        (CanaryState(reached=1, verdict="held", why="slow"), "CanaryWorse"),
        (CanaryState(reached=1, verdict="worse", why="slow"), "CanaryWorse"),
        (CanaryState(reached=1, verdict="aborted"), "CanaryAborted"),
        (CanaryState(step=1, reached=1), "WaitsForBudget"),
    ],
)
def test_a_canary_that_waits_for_gpus_keeps_its_reason_once_it_has_its_share(
    state: CanaryState, reason: str
) -> None:
    present = replace(canary(), state=state)
    former = replace(full("a", 12), planned=12)
    pools = (PoolState(MIXED, 15, replace(full("b", 4), planned=4), (former,)),)
    budget = Budget(16, {MIXED: 1}, {MIXED: PodCounts({"a": 12, "b": 4}, 0)})
    rollout = plan_within(pools, STABLE, present.plan, budget)
    assert rollout.reason == reason
    assert rollout.message.endswith(" engines wait for GPUs of the budget of 16.")


def within(gpus: int, replicas: int, new: int, former: int) -> Rollout:
    """The plan where so many engines of both revisions are there."""
    a = replace(full("a", former), is_tried=former > 0)
    pools = (PoolState(MIXED, replicas, full("b", new), (a,)),)
    budget = Budget(gpus, {MIXED: 1}, {MIXED: PodCounts({"a": former, "b": new}, 0)})
    return plan_within(pools, STABLE, canary(steps=[25, 50]).plan, budget)


@pytest.mark.parametrize(
    ("gpus", "replicas", "new", "former", "shares"),
    [
        (6, 5, 1, 4, {"b": 1, "a": 5}),
        (5, 5, 1, 4, {"b": 1, "a": 4}),
        (7, 5, 1, 4, {"b": 2, "a": 5}),
        (1, 1, 0, 0, {"b": 0, "a": 1}),
        (2, 1, 0, 0, {"b": 1, "a": 1}),
    ],
)
def test_stable_engines_get_gpus_first(
    gpus: int, replicas: int, new: int, former: int, shares: dict[str, int]
) -> None:
    rollout = within(gpus, replicas, new, former)
    assert rollout.shares == {MIXED: shares}
    assert (rollout.reason == "WaitsForBudget") is (
        sum(shares.values()) < replicas + -(-replicas // 4)
    )


def test_no_canary_engine_comes_while_a_stable_one_of_the_other_pool_waits() -> None:
    prefill = PoolState(PREFILL, 8, full("p2", 1), (full("p1", 8),))
    decode = PoolState(DECODE, 3, full("d2", 1), (full("d1", 1),))
    counted = {PREFILL: PodCounts({"p1": 8, "p2": 1}, 0), DECODE: PodCounts({"d1": 1, "d2": 1}, 0)}
    budget = Budget(14, {PREFILL: 1, DECODE: 2}, counted)
    stable = {PREFILL: "p1", DECODE: "d1"}
    rollout = plan_within((prefill, decode), stable, canary().plan, budget)
    assert rollout.shares == {PREFILL: {"p2": 1, "p1": 8}, DECODE: {"d2": 1, "d1": 1}}


@pytest.mark.parametrize(("gpus", "engines"), [(5, 0), (6, 1)])
def test_of_two_pools_neither_begins_without_room_for_both(gpus: int, engines: int) -> None:
    roles = {PREFILL: "p", DECODE: "d"}
    pools = tuple(
        PoolState(role, 2, RolloutRevision(f"{name}2", is_tried=False), (full(f"{name}1", 2),))
        for role, name in roles.items()
    )
    stable = {role: f"{name}1" for role, name in roles.items()}
    counted = {role: PodCounts({stable[role]: 2}, 0) for role in roles}
    budget = Budget(gpus, dict.fromkeys(roles, 1), counted)
    rollout = plan_within(pools, stable, canary().plan, budget)
    assert rollout.shares == {
        PREFILL: {"p2": engines, "p1": 2},
        DECODE: {"d2": engines, "d1": 2},
    }
    assert rollout.reason == ("RollingOut" if engines else "WaitsForBudget")
