"""Roll-outs within a budget of GPUs: never more pods than it allows, and done in the end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_contract.labels import Role
from sluice_operator.service.budget import WAITS_FOR_BUDGET, Budget, Counted, plan_within
from sluice_operator.service.rollout import PoolState, Revision, Rollout, plan_rollout
from sluice_operator.service.rollout_in_place import IN_PLACE

PREFILL, DECODE = Role.PREFILL, Role.DECODE
STEPS = 200
"""More than any of these roll-outs takes."""


class Cluster:
    """Two pools whose pods take a while to go; what the operator knows of pods lags behind."""

    def __init__(self, sizes: dict[Role, int], gpus: dict[Role, int], budget: int) -> None:
        self.sizes, self.gpus, self.budget = sizes, gpus, budget
        self.pods: dict[Role, dict[str, int]] = {role: {} for role in sizes}
        self.draining: dict[Role, list[tuple[str, int]]] = {role: [] for role in sizes}
        self.asked: dict[Role, dict[str, int]] = {role: {} for role in sizes}
        self.counted: dict[Role, Counted] = {}
        self.ready: dict[Role, dict[str, int]] = {role: {} for role in sizes}
        self.stable: dict[Role, str] = {}
        self.wanted = "a"

    def holding(self) -> int:
        return sum(
            gpus * (sum(self.pods[role].values()) + len(self.draining[role]))
            for role, gpus in self.gpus.items()
        )

    def step(self, drain_steps: int, *, looks: bool) -> Rollout:
        """A plan that is carried out, by reconciles that count the pods first; these follow, and
        are counted again where somebody `looks`."""
        budget = Budget(self.budget, self.gpus, self.counted)
        plan = plan_within(self.states(), self.stable, plan_rollout, budget)
        self.stable = dict(plan.stable)
        self.count()
        for role, shares in plan.shares.items():
            self.asked[role] = dict(shares)
            for name in self.pods[role].keys() | shares.keys():
                before, count = self.pods[role].get(name, 0), shares.get(name, 0)
                self.pods[role][name] = count
                self.draining[role] += [(name, drain_steps)] * max(0, before - count)
        assert self.holding() <= self.budget
        if looks:
            self.count()
        for role, left in self.draining.items():
            self.draining[role] = [(name, steps - 1) for name, steps in left if steps > 0]
        return plan

    def count(self) -> None:
        """What pools say of their pods."""
        self.ready = {role: dict(pods) for role, pods in self.pods.items()}
        for role, pods in self.pods.items():
            going = Counter(name for name, _ in self.draining[role])
            self.counted[role] = Counted(Counter(pods) + going, going.total())

    def states(self) -> tuple[PoolState, ...]:
        return tuple(
            PoolState(
                role,
                size,
                self._revision(role, self.wanted),
                tuple(
                    self._revision(role, name) for name in self.asked[role] if name != self.wanted
                ),
            )
            for role, size in self.sizes.items()
        )

    def _revision(self, role: Role, name: str) -> Revision:
        count = self.asked[role].get(name, 0)
        there, ready = name in self.asked[role], min(count, self.ready[role].get(name, 0))
        settled = there and ready == count
        return Revision(name, count, ready, settled=settled, fingerprint=name, is_there=there)

    def is_done(self) -> bool:
        only = all(asked == {self.wanted: self.sizes[role]} for role, asked in self.asked.items())
        return only and not any(self.draining.values())


@settings(max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    gpus=st.tuples(st.integers(1, 2), st.integers(0, 2)),
    slack=st.integers(0, 6),
    drain_steps=st.integers(0, 3),
    looks=st.lists(st.booleans(), max_size=12),
)
def test_no_instant_has_more_than_the_budget_and_the_roll_out_ends(
    sizes: tuple[int, int],
    gpus: tuple[int, int],
    slack: int,
    drain_steps: int,
    looks: list[bool],
) -> None:
    by_role = dict(zip((PREFILL, DECODE), sizes, strict=True))
    each = dict(zip((PREFILL, DECODE), gpus, strict=True))
    budget = sum(each[role] * size for role, size in by_role.items()) + slack
    cluster = Cluster(by_role, each, budget)
    seen = iter(looks)
    for name in ("a", "b"):
        cluster.wanted = name
        for _ in range(STEPS):
            cluster.step(drain_steps, looks=next(seen, True))
            if cluster.is_done():
                break
        assert cluster.is_done(), (name, cluster.asked, cluster.draining)


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


def test_without_a_budget_nothing_changes() -> None:
    pools = (PoolState(PREFILL, 2, Revision("b"), (Revision("a", 2, 2, settled=True),)),)
    assert plan_within(pools, {PREFILL: "a"}, plan_rollout, None) == plan_rollout(
        pools, {PREFILL: "a"}
    )
    roomy = Budget(9, {PREFILL: 1}, {})
    planned = plan_within(pools, {PREFILL: "a"}, plan_rollout, roomy)
    assert planned == plan_rollout(pools, {PREFILL: "a"})
