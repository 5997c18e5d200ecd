"""Whole roll-outs within a budget of GPUs: never more pods than it allows, and done in the end."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_operator.service.rollout.gpu_budget import (
    WAITS_FOR_BUDGET,
    Budget,
    PodCounts,
    plan_within,
)
from sluice_operator.service.rollout.in_place import IN_PLACE
from sluice_operator.service.rollout.surge import PoolState, Rollout, RolloutRevision, plan_rollout

from tests.examples import examples

PREFILL, DECODE = Role.PREFILL, Role.DECODE
STEPS = 200
"""More than any of these roll-outs takes."""


class Cluster:
    """Two pools whose pods take a while to go; what the operator knows of pods lags behind."""

    def __init__(
        self, sizes: dict[Role, int], gpus: dict[Role, int], budget: int, *, prints: bool = True
    ) -> None:
        self.sizes, self.gpus, self.budget = sizes, gpus, budget
        self.pods: dict[Role, dict[str, int]] = {role: {} for role in sizes}
        self.draining: dict[Role, list[tuple[str, int]]] = {role: [] for role in sizes}
        self.asked: dict[Role, dict[str, int]] = {role: {} for role in sizes}
        self.counted: dict[Role, PodCounts] = {}
        self.ready: dict[Role, dict[str, int]] = {role: {} for role in sizes}
        self.deployments: dict[Role, dict[str, tuple[int, int]]] = {role: {} for role in sizes}
        """Engines that were asked for and that were ready, as seen last."""
        self.stable: dict[Role, str] = {}
        self.wanted = "a"
        self.tried: set[tuple[Role, str]] = set()
        self.prints = prints
        """Whether engines of different revisions cannot work together."""
        self.is_interrupted = False
        """Whether nobody was served after a plan, and somebody before it."""

    def holding(self) -> int:
        return sum(
            gpus * (sum(self.pods[role].values()) + len(self.draining[role]))
            for role, gpus in self.gpus.items()
        )

    def step(self, drain_steps: int, *, looks: bool) -> Rollout:
        """A plan that is carried out, by reconciles that count the pods first; these follow, and
        are counted again where somebody `looks`, and a Deployment's changes are seen."""
        budget, served = Budget(self.budget, self.gpus, self.counted), self.serves()
        plan = plan_within(self.states(), self.stable, plan_rollout, budget)
        self.stable = dict(plan.stable)
        self.count()
        for role, shares in plan.shares.items():
            self.asked[role] = dict(shares)
            self.tried |= {(role, name) for name, count in shares.items() if count}
            new = {name: (count, 0) for name, count in shares.items()}
            self.deployments[role] = new | self.deployments[role]
            for name in self.pods[role].keys() | shares.keys():
                before, count = self.pods[role].get(name, 0), shares.get(name, 0)
                self.pods[role][name] = count
                self.draining[role] += [(name, drain_steps)] * max(0, before - count)
        assert self.holding() <= self.budget
        self.is_interrupted = self.is_interrupted or (served and not self.serves())
        if looks:
            self.count()
            self.see()
        for role, left in self.draining.items():
            self.draining[role] = [(name, steps - 1) for name, steps in left if steps > 0]
        return plan

    def serves(self) -> bool:
        """Whether a ready engine of each pool has a partner in every other."""
        up = [
            {self._print(name) for name, pods in self.pods[role].items() if self._ready(role, name)}
            for role in self.sizes
        ]
        return bool(set.intersection(*up))

    def _ready(self, role: Role, name: str) -> int:
        return min(self.pods[role].get(name, 0), self.ready[role].get(name, 0))

    def _print(self, name: str) -> str:
        return name if self.prints else ""

    def count(self) -> None:
        """Takes over the counts of pods in the pools' statuses."""
        self.ready = {role: dict(pods) for role, pods in self.pods.items()}
        for role, there in self.pods.items():
            self.counted[role] = PodCounts(Counter(there), len(self.draining[role]))

    def see(self) -> None:
        """Takes over the Deployments as they are."""
        self.deployments = {
            role: {name: (count, self._ready(role, name)) for name, count in asked.items()}
            for role, asked in self.asked.items()
        }

    def states(self) -> tuple[PoolState, ...]:
        return tuple(
            PoolState(
                role,
                size,
                self._revision(role, self.wanted),
                tuple(
                    self._revision(role, name)
                    for name in self.deployments[role]
                    if name != self.wanted
                ),
            )
            for role, size in self.sizes.items()
        )

    def _revision(self, role: Role, name: str) -> RolloutRevision:
        asked, there = self.asked[role], name in self.deployments[role]
        count, ready = self.deployments[role].get(name, (0, 0))
        return RolloutRevision(
            name,
            count,
            ready,
            settled=there and ready == count,
            fingerprint=self._print(name),
            planned=asked.get(name, count),
            is_tried=(role, name) in self.tried,
            is_leaving=there and name not in asked,
        )

    def is_done(self) -> bool:
        only = all(asked == {self.wanted: self.sizes[role]} for role, asked in self.asked.items())
        return only and not any(self.draining.values())


def rolled(
    sizes: tuple[int, int],
    gpus: tuple[int, int],
    budget: int,
    *,
    drain_steps: int = 2,
    prints: bool,
) -> Cluster:
    """Two pools after a roll-out, from one complete revision to another."""
    by_role = dict(zip((PREFILL, DECODE), sizes, strict=True))
    each = dict(zip((PREFILL, DECODE), gpus, strict=True))
    cluster = Cluster(by_role, each, budget, prints=prints)
    for name in ("a", "b"):
        cluster.wanted = name
        steps = 0
        while not cluster.is_done():
            cluster.step(drain_steps, looks=True)
            assert (steps := steps + 1) < STEPS, (name, cluster.asked, cluster.draining)
    return cluster


@examples(60)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    gpus=st.tuples(st.integers(1, 2), st.integers(0, 2)),
    slack=st.integers(0, 6),
    drain_steps=st.integers(0, 3),
    looks=st.lists(st.booleans(), max_size=12),
    small_steps=st.integers(0, 3),
)
def test_no_instant_has_more_than_the_budget_and_the_roll_out_ends(
    sizes: tuple[int, int],
    gpus: tuple[int, int],
    slack: int,
    drain_steps: int,
    looks: list[bool],
    small_steps: int,
) -> None:
    """Pools are small for some steps of a roll-out, and grow again. Such a one may halt."""
    by_role = dict(zip((PREFILL, DECODE), sizes, strict=True))
    each = dict(zip((PREFILL, DECODE), gpus, strict=True))
    budget = sum(each[role] * size for role, size in by_role.items()) + slack
    cluster = Cluster(by_role, each, budget)
    seen = iter(looks)
    for name in ("a", "b"):
        cluster.wanted = name
        for step in range(STEPS):
            is_small = 0 < step <= small_steps
            cluster.sizes = dict.fromkeys(by_role, 1) if is_small else by_role
            cluster.step(drain_steps, looks=next(seen, True))
            if step >= small_steps and cluster.is_done():
                break
        assert cluster.is_done() or small_steps, (name, cluster.asked, cluster.draining)


@pytest.mark.parametrize("prints", [False, True])
@pytest.mark.parametrize(
    ("sizes", "gpus", "budget"),
    [
        ((3, 1), (1, 1), 4),
        ((1, 3), (1, 1), 4),
        ((3, 1), (1, 1), 5),
        ((2, 1), (1, 1), 4),
        ((4, 1), (1, 2), 6),
        ((2, 2), (1, 1), 4),
        ((1, 2), (1, 4), 10),
    ],
)
def test_the_only_engine_of_a_pool_serves_until_its_successor_does(
    sizes: tuple[int, int], gpus: tuple[int, int], budget: int, *, prints: bool
) -> None:
    assert not rolled(sizes, gpus, budget, prints=prints).is_interrupted


def test_pools_larger_than_the_budget_are_rolled_out_all_the_same() -> None:
    cluster = Cluster({PREFILL: 4, DECODE: 4}, {PREFILL: 1, DECODE: 1}, 4)
    for name in ("a", "b"):
        cluster.wanted = name
        for _ in range(STEPS):
            cluster.step(1, looks=True)
    asked = {role: {n: c for n, c in there.items() if c} for role, there in cluster.asked.items()}
    assert all(list(there) == ["b"] for there in asked.values()), asked


@examples(100)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    gpus=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    slack=st.integers(0, 4),
    drain_steps=st.integers(0, 3),
    prints=st.booleans(),
)
def test_a_service_is_interrupted_only_where_no_gpu_can_be_had(
    sizes: tuple[int, int], gpus: tuple[int, int], slack: int, drain_steps: int, *, prints: bool
) -> None:
    full = sum(count * each for count, each in zip(sizes, gpus, strict=True))
    cluster = rolled(sizes, gpus, full + slack, drain_steps=drain_steps, prints=prints)
    if prints:
        can = full + slack >= 2 * sum(gpus)
    else:
        can = all(
            size > 1 or slack + other_gpus * (other - 1) >= own
            for size, own, other, other_gpus in (
                (sizes[0], gpus[0], sizes[1], gpus[1]),
                (sizes[1], gpus[1], sizes[0], gpus[0]),
            )
        )
    assert cluster.is_interrupted is not can


def test_where_there_is_room_both_sets_serve_side_by_side() -> None:
    both = Cluster({PREFILL: 1, DECODE: 1}, {PREFILL: 1, DECODE: 1}, budget=4)
    both.step(0, looks=True)
    both.step(0, looks=True)
    both.wanted = "b"
    plan = both.step(0, looks=True)
    assert plan.shares[PREFILL] == plan.shares[DECODE] == {"b": 1, "a": 1}


def test_where_there_is_none_one_takes_the_place_of_another_and_it_is_said() -> None:
    tight = Cluster({PREFILL: 1, DECODE: 1}, {PREFILL: 1, DECODE: 1}, budget=3)
    tight.step(0, looks=True)
    tight.step(0, looks=True)
    tight.wanted = "b"
    plan = tight.step(2, looks=True)
    assert plan.reason in (IN_PLACE, WAITS_FOR_BUDGET)
    assert "spec.autoscaling.gpuBudget has no room for two sets" in plan.message
