"""Roll-outs without room for a surge: never more engines than asked for, no fewer than must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_operator.service.rollout.in_place import IN_PLACE, plan_in_place
from sluice_operator.service.rollout.surge import PoolState, Rollout, RolloutRevision

from tests.examples import examples

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
STEPS = 40
"""More than any of these roll-outs takes."""


class Cluster:
    """Pools without room for more engines than they are asked for."""

    def __init__(self, sizes: dict[Role, int]) -> None:
        self.sizes = sizes
        self.there: dict[Role, dict[str, RolloutRevision]] = {role: {} for role in sizes}
        self.wanted: dict[Role, RolloutRevision] = {}
        self.stable: dict[Role, str] = {}
        self.least_serving = 0

    def edit(self, name: str, fingerprint: str) -> None:
        for role in self.sizes:
            new = RolloutRevision(f"{role}-{name}", fingerprint=fingerprint, is_tried=False)
            self.wanted[role] = self.there[role].get(new.name, new)

    def step(self, *, starts: bool = True) -> Rollout:
        """The operator plans and carries it out; then every engine of the wanted revision is ready,
        if it `starts`."""
        plan = plan_in_place(self.pools(), self.stable)
        for role, shares in plan.shares.items():
            assert sum(shares.values()) <= self.sizes[role], "there is no room"
            found = {name: self._carried_out(role, name, count) for name, count in shares.items()}
            self.there[role] = found
        self.stable = dict(plan.stable)
        self.least_serving = min(self.least_serving, self.serving())
        for role, revision in self.wanted.items():
            here = self.there[role][revision.name]
            if starts:
                here = replace(here, ready=here.replicas, settled=True)
            self.there[role][revision.name] = here
        return plan

    def fail(self, *, is_late: bool = False) -> None:
        """The wanted revisions come no further; `is_late`: nor did they within their deadline."""
        for role, wanted in self.wanted.items():
            if revision := self.there[role].get(wanted.name):
                failed = replace(revision, ready=0, settled=False, stopped=True)
                self.there[role][wanted.name] = replace(failed, is_late=is_late)

    def start(self, name: str) -> None:
        """Every engine of a revision is ready."""
        for role, there in self.there.items():
            here = there[f"{role}-{name}"]
            there[here.name] = replace(here, ready=here.replicas, settled=True)

    def roll(self) -> list[Rollout]:
        """Until a plan that is carried out stays as it is."""
        self.least_serving = self.serving()
        plans = [self.step()]
        while len(plans) < STEPS and (len(plans) < 2 or plans[-1] != plans[-2]):
            plans.append(self.step())
        return plans

    def pools(self) -> tuple[PoolState, ...]:
        return tuple(
            PoolState(
                role,
                size,
                self.there[role].get(self.wanted[role].name, self.wanted[role]),
                tuple(r for n, r in self.there[role].items() if n != self.wanted[role].name),
            )
            for role, size in self.sizes.items()
        )

    def serving(self) -> int:
        """Ready engines of the smallest pool, of those that have a partner in every other."""
        kinds = {r.fingerprint for there in self.there.values() for r in there.values()}
        total = 0
        for kind in kinds:
            ready = [
                sum(r.ready for r in there.values() if r.fingerprint == kind)
                for there in self.there.values()
            ]
            total += min(ready)
        return total

    def _carried_out(self, role: Role, name: str, count: int) -> RolloutRevision:
        here = self.there[role].get(name, self.wanted[role])
        ready = min(here.ready, count)
        return replace(
            here,
            name=name,
            replicas=count,
            planned=count,
            ready=ready,
            settled=ready == count,
            is_tried=here.is_tried or count > 0,
        )


def deployed(**sizes: int) -> Cluster:
    cluster = Cluster({Role(role): size for role, size in sizes.items()})
    cluster.edit("1", "x")
    cluster.roll()
    return cluster


def names(cluster: Cluster) -> dict[Role, dict[str, int]]:
    return {r: {n: v.ready for n, v in there.items()} for r, there in cluster.there.items()}


def test_engines_are_replaced_one_after_the_other() -> None:
    cluster = deployed(mixed=3)
    cluster.edit("2", "y")
    plans = cluster.roll()
    shares = [plan.shares[MIXED] for plan in plans]
    assert shares[:3] == [
        {"mixed-2": 1, "mixed-1": 2},
        {"mixed-2": 2, "mixed-1": 1},
        {"mixed-2": 3},
    ]
    assert cluster.least_serving == 2
    assert (plans[0].reason, plans[-1].reason) == (IN_PLACE, "Complete")
    assert "former engines left: pool mixed: 2" in plans[0].message
    assert cluster.stable == {MIXED: "mixed-2"}


def test_pairs_go_together_and_the_others_serve() -> None:
    cluster = deployed(prefill=2, decode=2)
    cluster.edit("2", "y")
    first = cluster.roll()[0].shares
    assert first == {
        PREFILL: {"prefill-2": 1, "prefill-1": 1},
        DECODE: {"decode-2": 1, "decode-1": 1},
    }
    assert cluster.least_serving == 1


def test_pools_of_unequal_size_keep_their_proportion() -> None:
    cluster = deployed(prefill=2, decode=4)
    cluster.edit("2", "y")
    steps = [plan.shares for plan in cluster.roll()]
    left = [(s[PREFILL].get("prefill-1", 0), s[DECODE].get("decode-1", 0)) for s in steps]
    assert left[:4] == [(1, 3), (1, 2), (0, 0), (0, 0)]


def test_a_pool_of_one_takes_along_those_that_would_serve_nobody() -> None:
    cluster = deployed(prefill=1, decode=3)
    cluster.edit("2", "y")
    assert cluster.step().shares == {
        PREFILL: {"prefill-2": 1, "prefill-1": 0},
        DECODE: {"decode-2": 3, "decode-1": 0},
    }
    alike = deployed(prefill=1, decode=3)
    alike.edit("2", "x")
    first = alike.step().shares
    assert first == {
        PREFILL: {"prefill-2": 1, "prefill-1": 0},
        DECODE: {"decode-2": 1, "decode-1": 2},
    }


def test_new_engines_that_do_not_come_up_end_no_more_former_ones() -> None:
    cluster = deployed(mixed=3)
    cluster.edit("2", "y")
    for _ in range(5):
        cluster.step(starts=False)
    assert names(cluster) == {MIXED: {"mixed-2": 0, "mixed-1": 2}}
    assert cluster.stable == {MIXED: "mixed-1"}
    cluster.edit("1", "x")
    cluster.roll()
    assert names(cluster) == {MIXED: {"mixed-1": 3}}


@pytest.mark.parametrize("is_known", [False, True], ids=["loads", "failed"])
def test_a_smaller_pool_keeps_former_engines_while_no_new_one_was_ready(*, is_known: bool) -> None:
    cluster = deployed(mixed=3)
    cluster.edit("2", "y")
    cluster.step(starts=False)
    cluster.step(starts=False)
    left = []
    for size in (2, 1, 3):
        if is_known:
            cluster.fail()
        cluster.sizes[MIXED] = size
        for _ in range(3):
            plan = cluster.step(starts=False)
        left.append(plan.shares[MIXED])
    # What loads goes on beside the others; what has failed goes first. The last one stays.
    assert left == [
        {"mixed-2": 0, "mixed-1": 2} if is_known else {"mixed-2": 1, "mixed-1": 1},
        {"mixed-2": 0, "mixed-1": 1},
        {"mixed-2": 2, "mixed-1": 1},
    ]
    assert cluster.stable == {MIXED: "mixed-1"}
    cluster.roll()
    assert names(cluster) == {MIXED: {"mixed-2": 3}}


@pytest.mark.parametrize("sizes", [{"mixed": 1}, {"mixed": 3}, {"prefill": 1, "decode": 2}])
@pytest.mark.parametrize("fingerprint", ["x", "y"])
def test_what_makes_no_progress_within_its_deadline_gives_the_place_back(
    sizes: dict[str, int], fingerprint: str
) -> None:
    cluster = deployed(**sizes)
    cluster.edit("2", fingerprint)
    cluster.step(starts=False)
    cluster.fail()
    tried = cluster.step(starts=False).shares
    assert all(shares[f"{role}-2"] for role, shares in tried.items()), "it may still come up"
    cluster.fail(is_late=True)
    for _ in range(3):
        plan = cluster.step(starts=False)
        former = {role: {f"{role}-2": 0, f"{role}-1": size} for role, size in sizes.items()}
        assert plan.shares == former
        cluster.start("1")
    assert plan.reason == "RolloutHalted"
    assert cluster.serving() == min(sizes.values())
    cluster.edit("3", "z")
    cluster.roll()
    assert names(cluster) == {Role(r): {f"{r}-3": size} for r, size in sizes.items()}


def test_new_engines_that_serve_give_nothing_back_where_others_are_late() -> None:
    cluster = deployed(prefill=2, decode=2)
    cluster.edit("2", "x")
    cluster.step(starts=False)
    cluster.fail(is_late=True)
    new = cluster.there[DECODE]["decode-2"]
    cluster.there[DECODE]["decode-2"] = replace(new, ready=1, stopped=False, is_late=False)
    shares = cluster.step(starts=False).shares
    assert shares[PREFILL] == {"prefill-2": 0, "prefill-1": 2}
    assert shares[DECODE] == {"decode-2": 1, "decode-1": 1}


def test_it_says_what_a_roll_out_without_a_ready_engine_waits_for() -> None:
    cluster = deployed(mixed=2)
    cluster.edit("2", "y")
    cluster.step(starts=False)
    cluster.sizes[MIXED] = 1
    assert "No engine of the wanted revision has been ready" in cluster.step(starts=False).message


def test_the_partners_of_a_last_former_engine_stay_with_it() -> None:
    cluster = deployed(prefill=2, decode=3)
    cluster.edit("2", "y")
    cluster.step(starts=False)
    cluster.sizes[PREFILL] = 1
    for _ in range(3):
        plan = cluster.step(starts=False)
    assert plan.shares[PREFILL] == {"prefill-2": 0, "prefill-1": 1}
    assert plan.shares[DECODE]["decode-1"] >= 1
    assert cluster.serving() == 1


def test_new_engines_that_would_be_no_partners_of_each_other_end_no_former_one() -> None:
    cluster = deployed(prefill=2, decode=2)
    cluster.edit("2", "int8")
    cluster.wanted[DECODE] = cluster.there[DECODE]["decode-1"]
    plans = cluster.roll()
    assert plans[-1].shares[PREFILL] == {"prefill-2": 0, "prefill-1": 2}
    assert "cannot work together" in plans[-1].message
    assert cluster.least_serving == 2


def test_of_a_smaller_pool_the_engines_that_are_ready_stay() -> None:
    cluster = deployed(mixed=2)
    cluster.edit("2", "y")
    cluster.step()
    cluster.there[MIXED]["mixed-1"] = replace(cluster.there[MIXED]["mixed-1"], ready=0)
    cluster.sizes[MIXED] = 1
    assert cluster.step(starts=False).shares == {MIXED: {"mixed-2": 1}}


def test_of_a_smaller_pool_former_engines_without_partners_end_first() -> None:
    cluster = deployed(prefill=3, decode=2)

    def revision(name: str, ready: int, replicas: int) -> RolloutRevision:
        kind = "x" if name.endswith("1") else "y"
        return RolloutRevision(name, replicas, ready, fingerprint=kind, planned=replicas)

    former, new = revision("prefill-1", 0, 1), revision("prefill-2", 1, 2)
    cluster.there[PREFILL] = {former.name: former, new.name: new}
    former, new = revision("decode-1", 1, 1), revision("decode-2", 1, 1)
    cluster.there[DECODE] = {former.name: former, new.name: new}
    cluster.edit("2", "y")
    cluster.sizes[DECODE] = 1
    assert cluster.step(starts=False).shares[DECODE] == {"decode-2": 1, "decode-1": 0}
    assert cluster.serving() == 1


def test_a_former_engine_that_is_ready_stays_before_one_that_was_complete_last() -> None:
    cluster = deployed(mixed=2)
    cluster.edit("2", "y")
    cluster.step()
    cluster.there[MIXED]["mixed-1"] = replace(cluster.there[MIXED]["mixed-1"], ready=0)
    cluster.edit("3", "z")
    shares = cluster.step(starts=False).shares[MIXED]
    assert shares == {"mixed-3": 1, "mixed-2": 1, "mixed-1": 0}


def test_a_service_that_sleeps_wakes_as_it_served_last() -> None:
    cluster = deployed(mixed=3)
    cluster.edit("2", "y")
    cluster.step(starts=False)
    cluster.sizes[MIXED] = 0
    cluster.step(starts=False)
    cluster.step(starts=False)
    cluster.sizes[MIXED] = 1
    assert cluster.step(starts=False).shares == {MIXED: {"mixed-2": 0, "mixed-1": 1}}
    cluster.there[MIXED]["mixed-1"] = replace(cluster.there[MIXED]["mixed-1"], ready=1)
    cluster.sizes[MIXED] = 2
    cluster.roll()
    assert names(cluster) == {MIXED: {"mixed-2": 2}}


def test_what_was_ready_before_a_service_sleeps_needs_no_former_engine() -> None:
    cluster = deployed(mixed=3)
    cluster.edit("2", "y")
    cluster.step()
    cluster.sizes[MIXED] = 0
    cluster.step()
    cluster.sizes[MIXED] = 1
    cluster.roll()
    assert names(cluster) == {MIXED: {"mixed-2": 1}}


def test_the_only_engine_ends_for_a_revision_that_was_not_tried() -> None:
    cluster = deployed(mixed=1)
    cluster.edit("2", "y")
    assert cluster.step(starts=False).shares == {MIXED: {"mixed-2": 1, "mixed-1": 0}}
    # Seen before the former Deployment has gone: what was decided stays so.
    old = RolloutRevision("mixed-1", 1, 1, settled=True, fingerprint="x", is_leaving=True)
    cluster.there[MIXED]["mixed-1"] = old
    assert cluster.step(starts=False).shares == {MIXED: {"mixed-2": 1}}


def test_of_edits_in_a_row_the_engines_that_serve_stay_longest() -> None:
    cluster = deployed(mixed=3)
    cluster.edit("2", "y")
    cluster.step(starts=False)
    cluster.edit("3", "z")
    assert cluster.step(starts=False).shares[MIXED] == {"mixed-3": 1, "mixed-1": 2}


@pytest.mark.parametrize("size", [0, 1])
def test_the_first_roll_out_says_that_it_starts(size: int) -> None:
    cluster = Cluster({MIXED: size})
    cluster.edit("1", "x")
    assert cluster.step().reason in ("Starting", "Complete")
    assert cluster.roll()[-1].stable == {MIXED: "mixed-1"}


EVENTS = st.tuples(
    st.sampled_from(("edit", "scale", "scale", "ready", "ready", "fail")),
    st.integers(0, 5),
    st.integers(0, 3),
)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    events=st.lists(EVENTS, min_size=8, max_size=16),
)
@examples(150)
def test_no_plan_ends_the_last_engines_that_serve(
    sizes: list[int], events: list[tuple[str, int, int]]
) -> None:
    roles = (MIXED,) if len(sizes) == 1 else (PREFILL, DECODE)
    cluster = deployed(**dict(zip(map(str, roles), sizes, strict=True)))
    for kind, number, value in events:
        if kind == "edit":
            cluster.edit(f"e{number}", "xy"[number % 2])
        elif kind == "scale":
            cluster.sizes[roles[number % len(roles)]] = 1 + value
        elif kind == "ready":
            _get_ready(cluster, roles[number % len(roles)], number // 2, value)
        elif kind == "fail":
            cluster.fail()
        before, starts_anew = cluster.serving(), _replaces_the_only_one(cluster)
        cluster.step(starts=False)
        assert cluster.serving() or not before or starts_anew, cluster.there


def _get_ready(cluster: Cluster, role: Role, number: int, ready: int) -> None:
    """One revision of a pool gets so many ready engines, at most those it has."""
    name = sorted(cluster.there[role])[number % len(cluster.there[role])]
    revision = cluster.there[role][name]
    count = min(ready, revision.replicas)
    settled = count == revision.replicas
    cluster.there[role][name] = replace(revision, ready=count, settled=settled, stopped=False)


def _replaces_the_only_one(cluster: Cluster) -> bool:
    """Whether a revision that was not tried yet takes the place of the one engine of a pool, which
    a roll-out in place cannot do otherwise."""
    return any(
        size == 1 and cluster.wanted[role].name not in cluster.there[role]
        for role, size in cluster.sizes.items()
    )


@given(
    prefill=st.integers(1, 5),
    decode=st.integers(1, 5),
    edits=st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 6)), min_size=1, max_size=4),
    scaled=st.integers(0, 5),
)
@examples(60)
def test_whatever_is_edited_it_comes_to_rest_within_its_room(
    prefill: int, decode: int, edits: list[tuple[str, int]], scaled: int
) -> None:
    cluster = deployed(prefill=prefill, decode=decode)
    for number, (fingerprint, steps) in enumerate(edits):
        cluster.edit(f"e{number}", fingerprint)
        for _ in range(steps):
            cluster.step()
    cluster.sizes[DECODE] = scaled
    cluster.roll()
    last = f"e{len(edits) - 1}"
    assert names(cluster) == {
        PREFILL: {f"prefill-{last}": prefill},
        DECODE: {f"decode-{last}": scaled},
    }
