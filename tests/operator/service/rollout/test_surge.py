"""Roll-outs of all pools of a service: what serves stays, whatever is edited and whatever dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sluice_contract.cluster.labels import Role
from sluice_operator.service.rollout.surge import PoolState, Rollout, RolloutRevision, plan_rollout

from tests.examples import examples

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE


def one(
    replicas: int, wanted: RolloutRevision, *others: RolloutRevision, stable: str = ""
) -> Rollout:
    """The plan of a single pool."""
    noted = {MIXED: stable} if stable else {}
    return plan_rollout((PoolState(MIXED, replicas, wanted, others),), noted)


def full(name: str, count: int, fingerprint: str = "") -> RolloutRevision:
    """A revision with all its engines ready."""
    return RolloutRevision(name, count, count, settled=True, fingerprint=fingerprint)


def test_the_stable_revision_stays_though_nothing_of_it_is_ready() -> None:
    found = one(2, RolloutRevision("b", 2), RolloutRevision("a", 2, ready=0), stable="a")
    assert found.shares == {MIXED: {"b": 2, "a": 2}}
    assert found.stable == {MIXED: "a"}


def test_the_stable_revision_follows_up_when_the_wanted_one_has_stopped() -> None:
    moving, stopped = RolloutRevision("b", 2), RolloutRevision("b", 2, stopped=True)
    assert one(5, moving, full("a", 2), stable="a").shares[MIXED] == {"b": 5, "a": 2}
    assert one(5, stopped, full("a", 2), stable="a").shares[MIXED] == {"b": 2, "a": 5}
    once = replace(full("a", 2), planned=5)
    assert one(5, moving, once, stable="a").shares[MIXED] == {"b": 5, "a": 5}, "no way back"


def test_the_pools_of_a_set_that_has_stopped_in_one_follow_up_together() -> None:
    pools = (
        PoolState(PREFILL, 3, full("p2", 2), (full("p1", 2),)),
        PoolState(DECODE, 4, RolloutRevision("d2", 4, stopped=True), (full("d1", 4),)),
    )
    found = plan_rollout(pools, {PREFILL: "p1", DECODE: "d1"})
    assert found.shares[PREFILL] == {"p2": 2, "p1": 3}


def test_a_wanted_revision_that_has_stopped_keeps_one_engine_to_show_when_it_works() -> None:
    stopped = RolloutRevision("b", 0, stopped=True)
    assert one(3, stopped, full("a", 3), stable="a").shares[MIXED] == {"b": 1, "a": 3}
    assert one(3, stopped).shares[MIXED] == {"b": 3}, "nothing else serves"


def test_from_none_the_stable_revision_comes_up_at_once() -> None:
    found = one(3, full("b", 0), full("a", 0), stable="a")
    assert found.shares[MIXED] == {"b": 3, "a": 3}


def test_the_stable_revision_follows_down_at_once() -> None:
    assert one(1, RolloutRevision("b", 2), full("a", 2), stable="a").shares[MIXED] == {
        "b": 1,
        "a": 1,
    }


def test_of_edits_in_a_row_the_stable_and_the_wanted_revision_stay() -> None:
    found = one(2, RolloutRevision("c"), RolloutRevision("b", 2), full("a", 2), stable="a")
    assert found.shares[MIXED] == {"c": 2, "a": 2}


def test_a_revision_that_serves_stays_while_the_stable_one_is_down() -> None:
    found = one(3, RolloutRevision("a", 3), RolloutRevision("b", 3, ready=2), stable="a")
    assert found.shares[MIXED] == {"a": 3, "b": 2}


def test_new_engines_that_are_no_partners_of_each_other_end_no_former_one() -> None:
    """Prefill was edited alone, so that its new engines can work with nobody."""
    prefill = PoolState(PREFILL, 1, full("p2", 1, "int8"), (full("p1", 1, "auto"),))
    pools = (prefill, PoolState(DECODE, 1, full("d1", 1, "auto")))
    before = {PREFILL: "p1", DECODE: "d1"}
    plan = plan_rollout(pools, before)
    assert (plan.stable, plan.reason) == (before, "WaitsForPool")
    assert "cannot work together" in plan.message
    assert plan.shares == {PREFILL: {"p2": 1, "p1": 1}, DECODE: {"d1": 1}}
    assert plan_rollout(pools, plan.stable).shares == plan.shares


def test_completeness_is_noted_before_the_former_revision_goes() -> None:
    first = one(2, full("b", 2), full("a", 2), stable="a")
    assert first.shares[MIXED] == {"b": 2, "a": 2}
    assert first.stable == {MIXED: "b"}
    assert one(2, full("b", 2), full("a", 2), stable="b").shares[MIXED] == {"b": 2}


def test_a_revision_with_fewer_engines_than_the_pool_is_asked_for_is_not_complete() -> None:
    """The pool was scaled up, and the wanted revision's Deployment is still of the former size."""
    found = one(4, full("b", 2), full("a", 2), stable="a")
    assert found.shares[MIXED] == {"b": 4, "a": 2}
    assert (found.stable, found.reason) == ({MIXED: "a"}, "RollingOut")


def test_a_return_to_the_stable_revision_ends_the_other_at_once() -> None:
    assert one(2, full("a", 2), RolloutRevision("b", 2), stable="a").shares[MIXED] == {"a": 2}


def test_nothing_is_complete_without_an_engine() -> None:
    """Else a pool that is scaled to zero and back in a stuck roll-out would serve no more."""
    found = one(0, full("b", 0), full("a", 0), stable="a")
    assert found.shares[MIXED] == {"b": 0, "a": 0}
    assert found.stable == {MIXED: "a"}


def test_a_pool_without_engines_goes_with_one_that_is_complete() -> None:
    def pools(decode: RolloutRevision) -> tuple[PoolState, ...]:
        prefill = PoolState(PREFILL, 0, full("p2", 0), (full("p1", 0),))
        return prefill, PoolState(DECODE, 4, decode, (full("d1", 4),))

    before = {PREFILL: "p1", DECODE: "d1"}
    half = plan_rollout(pools(RolloutRevision("d2", 4, ready=3)), before)
    assert (half.stable, half.reason) == (before, "RollingOut")
    done = plan_rollout(pools(full("d2", 4)), before)
    assert (done.stable, done.reason) == ({PREFILL: "p2", DECODE: "d2"}, "Complete")
    last = plan_rollout(pools(full("d2", 4)), done.stable)
    assert last.shares == {PREFILL: {"p2": 0}, DECODE: {"d2": 4}}


def test_a_revision_that_was_never_tried_leaves_the_former_one_beside_it() -> None:
    found = one(0, RolloutRevision("b", is_tried=False), full("a", 0), stable="a")
    assert found.shares == {MIXED: {"b": 0, "a": 0}}
    assert found.stable == {MIXED: "a"}


def test_a_first_revision_that_serves_is_stable_before_it_is_complete() -> None:
    assert one(3, RolloutRevision("a", 3, ready=0)).stable == {}
    assert one(3, RolloutRevision("a", 3, ready=2)).stable == {MIXED: "a"}


def test_pools_wait_for_each_other() -> None:
    pools = (
        PoolState(PREFILL, 2, full("p2", 2, "y"), (full("p1", 2, "x"),)),
        PoolState(DECODE, 1, RolloutRevision("d2", 1, fingerprint="y"), (full("d1", 1, "x"),)),
    )
    found = plan_rollout(pools, {PREFILL: "p1", DECODE: "d1"})
    assert found.shares == {PREFILL: {"p2": 2, "p1": 2}, DECODE: {"d2": 1, "d1": 1}}
    assert found.stable == {PREFILL: "p1", DECODE: "d1"}
    assert found.reason == "WaitsForPool"
    assert "pool decode: 0 of 1 engines of revision d2 ready" in found.message


def test_a_partner_stays_without_which_the_stable_revision_would_serve_no_longer() -> None:
    """Each pool has as many ready engines as it is asked for, and `d1` works with `p2` alone."""
    pools = (
        PoolState(PREFILL, 1, full("p3", 1, "y"), (full("p1", 0, "x"), full("p2", 1, "x"))),
        PoolState(DECODE, 2, RolloutRevision("d3", 2, 1, fingerprint="y"), (full("d1", 1, "x"),)),
    )
    found = plan_rollout(pools, {PREFILL: "p1", DECODE: "d1"})
    assert found.shares == {PREFILL: {"p3": 1, "p1": 1, "p2": 1}, DECODE: {"d3": 2, "d1": 1}}


class World(RuleBasedStateMachine):
    """Edits, scaling, deaths and crashes in random order, on one pool or two."""

    ROLES: tuple[Role, ...] = (MIXED,)

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.good: dict[str, bool] = {}
        self.fingerprints: dict[str, str] = {}
        self.there: dict[Role, dict[str, RolloutRevision]] = {role: {} for role in self.ROLES}
        self.wanted: dict[Role, str] = {}
        self.replicas: dict[Role, int] = {}
        self.stable: dict[Role, str] = {}

    @initialize(replicas=st.integers(1, 4))
    def begin(self, replicas: int) -> None:
        self.replicas = dict.fromkeys(self.ROLES, replicas)
        self.edit(good=True, roles=None)

    @rule(good=st.booleans(), roles=st.sampled_from([None, 0, 1]))
    def edit(self, *, good: bool, roles: int | None) -> None:
        """Another spec: of all pools, with another fingerprint, or of one, with the same."""
        self.number += 1
        changed = self.ROLES if roles is None else (self.ROLES[roles % len(self.ROLES)],)
        for role in changed:
            name = f"{role}-{self.number}"
            same = self.fingerprints.get(self.wanted.get(role, ""), "")
            self.fingerprints[name] = f"f{self.number}" if roles is None else same
            self.good[name], self.wanted[role] = good, name

    @rule(back=st.integers(1, 3))
    def return_to_stable(self, back: int) -> None:
        if len(self.stable) == len(self.ROLES):
            self.wanted = dict(self.stable)

    @rule(replicas=st.integers(0, 5))
    def scale(self, replicas: int) -> None:
        self.replicas = dict.fromkeys(self.ROLES, replicas)

    @precondition(lambda self: len(self.ROLES) > 1)
    @rule(replicas=st.integers(0, 5), role=st.integers(0, 1))
    def scale_one_pool(self, replicas: int, role: int) -> None:
        self.replicas[self.ROLES[role]] = replicas

    @rule(data=st.data())
    def engines_die(self, data: st.DataObject) -> None:
        everything = [(role, name) for role in self.ROLES for name in self.there[role]]
        if everything:
            role, name = data.draw(st.sampled_from(everything))
            left = data.draw(st.integers(0, self.there[role][name].ready))
            self._change(role, name, ready=left)

    @rule(data=st.data())
    def engines_start(self, data: st.DataObject) -> None:
        everything = [(role, name) for role in self.ROLES for name in self.there[role]]
        if everything:
            role, name = data.draw(st.sampled_from(everything))
            if self.good[name]:
                revision = self.there[role][name]
                self._change(
                    role, name, ready=data.draw(st.integers(revision.ready, revision.replicas))
                )

    @rule(noted=st.booleans(), reach=st.integers(0, 2))
    def operator_runs(self, *, noted: bool, reach: int) -> None:
        """Plans, carries it out for the first pools, and may end before it has noted anything."""
        before, plan = self._pools(), self._plan()
        self._check(before, plan)
        for role in self.ROLES[:reach]:
            self._carry_out(role, plan)
        if noted and reach >= len(self.ROLES):
            self.stable = dict(plan.stable)

    @rule()
    def all_comes_to_rest(self) -> None:
        """Everything that can start does, and the operator has all the time it needs."""
        for _ in range(6):
            self._settle()
        wanted_works = all(self.good[name] for name in self.wanted.values())
        if wanted_works and any(self.replicas.values()):
            for role in self.ROLES:
                assert set(self.there[role]) == {self.wanted[role]}
                assert self.there[role][self.wanted[role]].ready == self.replicas[role]
            assert self.stable == self.wanted
        if len(self.stable) == len(self.ROLES) and all(map(self.good.get, self.stable.values())):
            for role, name in self.stable.items():
                assert self.there[role][name].ready == self.replicas[role], "no scaling is blocked"
        again = self._plan()
        assert again.shares == {
            role: {name: r.replicas for name, r in self.there[role].items()} for role in self.ROLES
        }, "a plan that is carried out stays as it is"

    @invariant()
    def surge_is_bounded(self) -> None:
        if not self.replicas:
            return
        for role, shares in self._plan().shares.items():
            assert sum(shares.values()) <= (2 + len(self.ROLES)) * max(self.replicas.values())
            stable = self.stable.get(role)
            if stable in shares:
                before = self.there[role][stable].replicas if stable in self.there[role] else 0
                assert min(before, self.replicas[role]) <= shares[stable] <= self.replicas[role]
            assert self._fewest(role) <= shares[self.wanted[role]] <= self.replicas[role]

    def _fewest(self, role: Role) -> int:
        """Engines that the wanted revision of a pool gets at least."""
        found = (self.there[each].get(name) for each, name in self.wanted.items())
        stopped = any(revision is not None and revision.stopped for revision in found)
        return min(1, self.replicas[role]) if stopped else self.replicas[role]

    def _settle(self) -> None:
        plan = self._plan()
        self._check(self._pools(), plan)
        for role in self.ROLES:
            self._carry_out(role, plan)
            for name, revision in self.there[role].items():
                if self.good[name]:
                    self._change(role, name, ready=revision.replicas)
                else:
                    there = replace(revision, stopped=revision.replicas > 0)
                    self.there[role][name] = there
        self.stable = dict(plan.stable)

    def _plan(self) -> Rollout:
        return plan_rollout(self._pools(), self.stable)

    def _pools(self) -> tuple[PoolState, ...]:
        return tuple(self._pool(role) for role in self.ROLES)

    def _pool(self, role: Role) -> PoolState:
        name, there = self.wanted[role], self.there[role]
        new = RolloutRevision(name, fingerprint=self.fingerprints[name], is_tried=False)
        others = tuple(each for each in there.values() if each.name != name)
        return PoolState(role, self.replicas[role], there.get(name, new), others)

    def _carry_out(self, role: Role, plan: Rollout) -> None:
        shares, there = plan.shares[role], self.there[role]
        for name in there.keys() - shares.keys():
            del there[name]
        for name, count in shares.items():
            there.setdefault(name, RolloutRevision(name, fingerprint=self.fingerprints[name]))
            self._change(role, name, replicas=count, ready=min(there[name].ready, count))

    def _change(self, role: Role, name: str, **values: int) -> None:
        revision = replace(self.there[role][name], **values)  # type: ignore[arg-type]
        settled = revision.ready == revision.replicas
        self.there[role][name] = replace(revision, settled=settled)

    def _check(self, pools: tuple[PoolState, ...], plan: Rollout) -> None:
        """What serves is never taken away for what does not; unless that is asked for."""
        if plan.stable != self.stable and any(self.replicas.values()):
            known = any(r.name == self.stable.get(pool.role) for pool in pools for r in pool.all)
            tried = (pool.desired.ready == pool.replicas for pool in pools)
            assert all(tried) or not known, "noted before it has shown that it works"
        if not all(pool.replicas for pool in pools):
            return
        for pool in pools:
            before = self._serving(pools, pool, None)
            after = self._serving(pools, pool, plan)
            assert after >= min(before, pool.replicas)
        for pool in pools:
            for other in pools:
                self._check_partners(pool, other, plan)

    def _check_partners(self, pool: PoolState, other: PoolState, plan: Rollout) -> None:
        """A kept revision that has ready partners keeps one."""
        for revision in pool.all:
            if not min(revision.ready, plan.shares[pool.role].get(revision.name, 0)):
                continue
            partners = [r for r in other.all if r.fingerprint == revision.fingerprint and r.ready]
            kept = [r for r in partners if min(r.ready, plan.shares[other.role].get(r.name, 0))]
            if partners and not self._is_done(plan):
                assert kept, (revision, partners)

    def _is_done(self, plan: Rollout) -> bool:
        return all(len(shares) == 1 for shares in plan.shares.values())

    def _serving(self, pools: tuple[PoolState, ...], pool: PoolState, plan: Rollout | None) -> int:
        """Ready engines of a pool that have a partner in every other pool."""

        def left(each: PoolState, revision: RolloutRevision) -> int:
            if plan is None:
                return revision.ready
            return min(revision.ready, plan.shares[each.role].get(revision.name, 0))

        return sum(
            left(pool, revision)
            for revision in pool.all
            if all(
                any(left(other, r) for r in other.all if r.fingerprint == revision.fingerprint)
                for other in pools
            )
        )


class TwoPools(World):
    ROLES = (PREFILL, DECODE)


TestOnePool = World.TestCase
TestOnePool.settings = examples(40, stateful_step_count=30)
TestTwoPools = TwoPools.TestCase
TestTwoPools.settings = examples(40, stateful_step_count=30)


@pytest.mark.process
class TestTwoPoolsLonger(TwoPools.TestCase):  # type: ignore[misc,valid-type]
    settings = examples(90, stateful_step_count=30)


@pytest.mark.full
@pytest.mark.timeout(3600)
class TestTwoPoolsLong(TwoPools.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=3000, stateful_step_count=40, deadline=None)
