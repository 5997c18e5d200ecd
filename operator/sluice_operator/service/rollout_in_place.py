"""Roll-outs without room for a surge: an engine of a former revision ends before one of the wanted
revision starts, so that no pool ever has more engines than it is asked for.

Pure. Knows counts, as `rollout` does. Of each pool one engine at a time is replaced, of all pools
together; the next ones end when the new ones are ready. Where the revisions of two pools work only
with their own kind, a pool whose last former engine ends takes those of the others along, which
would serve nobody. New engines that do not come up stop the roll-out, and the former ones that are
left serve on.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from sluice_contract.labels import Role

from sluice_operator.service.rollout import (
    PoolState,
    Revision,
    Revisions,
    Rollout,
    Shares,
    are_complete,
    counts_of,
    reason_of,
)

IN_PLACE: Final = "InPlace"
Former = Mapping[Role, int]
"""Engines of former revisions, by pool."""


def plan_in_place(pools: tuple[PoolState, ...], stable: Revisions) -> Rollout:
    """The plan for all pools; `stable`: the set that was complete last, as noted in status."""
    wanted = {pool.role: pool.wanted.name for pool in pools}
    former: Former = {pool.role: min(_asked(pool.others), pool.replicas) for pool in pools}
    if all(_has_come_up(pool, former[pool.role]) for pool in pools):
        former = _next(pools, former)
    shares = {pool.role: _shares(pool, former[pool.role], stable) for pool in pools}
    serves = all(pool.wanted.ready or not pool.replicas for pool in pools)
    done = are_complete(pools) or (serves and not any(former.values()))
    reason, message = _reason(pools, former)
    return Rollout(shares, wanted if done else stable, reason, message)


def _asked(revisions: tuple[Revision, ...]) -> int:
    return sum(revision.replicas for revision in revisions)


def _has_come_up(pool: PoolState, former: int) -> bool:
    """Whether all engines that may be there of the wanted revision are, and are ready."""
    return pool.wanted.ready >= pool.replicas - former


def _next(pools: tuple[PoolState, ...], former: Former) -> Former:
    """One engine less of each pool of which the largest share is to be replaced still."""
    left = {p.role: Fraction(former[p.role], p.replicas) for p in pools if p.replicas}
    most = max(left.values(), default=Fraction(0))
    after = {role: former[role] - 1 if left.get(role) == most else former[role] for role in former}
    after = {role: max(0, count) for role, count in after.items()}
    alone = any(former[role] and not after[role] for role in former)
    if alone and not _work_together(pools):
        return dict.fromkeys(former, 0)
    return after


def _work_together(pools: tuple[PoolState, ...]) -> bool:
    """Whether former engines of each pool work with wanted ones of the others."""
    return len({each.fingerprint for pool in pools for each in pool.all}) == 1


def _shares(pool: PoolState, former: int, stable: Revisions) -> Shares:
    """The wanted revision gets what the former ones leave; of these the one that was complete
    last is kept longest, then those with most ready engines."""

    def worth(revision: Revision) -> tuple[bool, int, str]:
        return revision.name == stable.get(pool.role), revision.ready, revision.name

    shares, left = {pool.wanted.name: pool.replicas - former}, former
    for revision in sorted(pool.others, key=worth, reverse=True):
        if count := min(revision.replicas, left):
            shares[revision.name] = count
            left -= count
    return shares


def _reason(pools: tuple[PoolState, ...], former: Former) -> tuple[str, str]:
    if are_complete(pools) or not any(pool.others for pool in pools):
        return reason_of(pools)
    left = ", ".join(f"pool {role}: {count}" for role, count in former.items())
    return IN_PLACE, (
        f"{counts_of(pools)}; spec.rollout.strategy is InPlace, so an engine ends before another "
        f"takes its place, and fewer serve meanwhile; former engines left: {left}."
    )
