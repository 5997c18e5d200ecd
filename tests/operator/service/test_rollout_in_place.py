"""Roll-outs without room for a surge: never more engines than asked for, no fewer than must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.labels import Role
from sluice_operator.service.rollout import PoolState, Revision, Rollout
from sluice_operator.service.rollout_in_place import IN_PLACE, plan_in_place

from tests.examples import examples

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
STEPS = 40
"""More than any of these roll-outs takes."""


class Cluster:
    """Pools without room for more engines than they are asked for."""

    def __init__(self, sizes: dict[Role, int]) -> None:
        self.sizes = sizes
        self.there: dict[Role, dict[str, Revision]] = {role: {} for role in sizes}
        self.wanted: dict[Role, Revision] = {}
        self.stable: dict[Role, str] = {}
        self.least_serving = 0

    def edit(self, name: str, fingerprint: str) -> None:
        for role in self.sizes:
            new = Revision(f"{role}-{name}", fingerprint=fingerprint, is_there=False)
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

    def _carried_out(self, role: Role, name: str, count: int) -> Revision:
        here = self.there[role].get(name, self.wanted[role])
        ready = min(here.ready, count)
        return replace(
            here, name=name, replicas=count, ready=ready, settled=ready == count, is_there=True
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
    assert cluster.step().shares == {PREFILL: {"prefill-2": 1}, DECODE: {"decode-2": 3}}
    alike = deployed(prefill=1, decode=3)
    alike.edit("2", "x")
    first = alike.step().shares
    assert first == {PREFILL: {"prefill-2": 1}, DECODE: {"decode-2": 1, "decode-1": 2}}


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
