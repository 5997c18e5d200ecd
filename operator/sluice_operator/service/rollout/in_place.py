"""Roll-outs without room for a surge: a former engine ends before a desired one starts, so that no
pool ever has more engines than its size.

Pure. Each pool replaces one engine at a time, all pools together. The next ones end when the new
ones are ready. If the revisions of two pools work only with their own kind, the end of a pool's
last former engine ends those of the other pools too: they would serve nobody.

New engines that do not come up stop the roll-out, and the remaining former ones serve on. If no
useful engine is ready within the deadline, the new engines give their place back. A pool that gets
smaller keeps former engines before failed new ones. Its last former engine ends only when a new one
is ready, or, in a pool of one engine, to try a revision for the first time. The Deployments of the
last complete set stay, without engines, until the desired revision serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_operator.service.rollout.surge import (
    PoolState,
    Revisions,
    Rollout,
    RolloutRevision,
    Shares,
    are_complete,
    counts_of,
    desired_pair,
    reason_of,
)

IN_PLACE: Final = "InPlace"
HALTED: Final = "RolloutHalted"
NEVER_READY: Final = (
    "no engine of the wanted revision has been ready, so the last former ones stay; it is tried "
    "again when a pool is asked for more engines, or with the next change of the spec"
)
Former = Mapping[Role, int]
"""Engines of former revisions, by pool."""
Pools = tuple[PoolState, ...]


def plan_in_place(pools: Pools, stable: Revisions) -> Rollout:
    """The plan for all pools; `stable`: the set that was complete last, as noted in status."""
    desired = {pool.role: pool.desired.name for pool in pools}
    former: Former = {pool.role: _kept(pool, pools, stable) for pool in pools}
    is_held = False
    if desired_pair(pools) and all(_has_come_up(pool, former[pool.role]) for pool in pools):
        after = _next(pools, former)
        is_held = not all(_may_end(pool, former, after, stable) for pool in pools)
        former = former if is_held else after
    done = are_complete(pools) or _is_replaced(pools, former, stable)
    shares = {pool.role: _shares(pool, former[pool.role], pools, stable) for pool in pools}
    for pool in pools:
        if (last := _stable_of(pool, stable)) and not done:
            shares[pool.role].setdefault(last.name, 0)
    reason, message = _reason(pools, former, is_held=is_held)
    return Rollout(shares, desired if done else stable, reason, message)


def _former(pool: PoolState) -> tuple[RolloutRevision, ...]:
    return tuple(revision for revision in pool.others if not revision.is_leaving)


def _stable_of(pool: PoolState, stable: Revisions) -> RolloutRevision | None:
    """The former revision that was complete last."""
    return next((r for r in _former(pool) if r.name == stable.get(pool.role)), None)


def planned(revision: RolloutRevision) -> int:
    """Engines by the last plan, which may not be carried out yet."""
    if revision.is_leaving:
        return 0
    return revision.replicas if revision.planned is None else revision.planned


def planned_former(pool: PoolState) -> int:
    """Engines of former revisions by the last plan."""
    return sum(map(planned, _former(pool)))


def _may_have_failed(revision: RolloutRevision) -> bool:
    return revision.is_tried and not revision.is_leaving


def _kept(pool: PoolState, pools: Pools, stable: Revisions) -> int:
    """Former engines that stay before one more is replaced.

    All stay, up to the pool's size, if no useful desired engine is ready and desired ones were
    tried: they missed their deadline, or the pool had no engines before. Otherwise a shrinking pool
    keeps a former engine for each desired one that is not ready, and all former ones that serve.
    """
    engines = planned_former(pool)
    is_of_use = work_together(pools) or all(p.desired.ready for p in pools if p.replicas)
    ready = pool.desired.ready if is_of_use else 0
    has_failed = any(p.desired.is_late for p in (pools if not is_of_use else (pool,)))
    has_slept = not (engines or planned(pool.desired) or pool.desired.ready)
    is_tried = _stable_of(pool, stable) is not None and _may_have_failed(pool.desired)
    if is_tried and not ready and (has_failed or has_slept):
        return pool.room
    serving = sum(
        min(revision.ready, planned(revision))
        for revision in _former(pool)
        if _partners(revision.fingerprint, pools)
    )
    return min(engines, pool.room, max(serving, pool.room - ready))


def _partners(fingerprint: str, pools: Pools) -> int:
    """Ready engines with this fingerprint, in the pool that has the fewest."""
    return min(
        (
            sum(r.ready for r in (pool.desired, *_former(pool)) if r.fingerprint == fingerprint)
            for pool in pools
            if pool.replicas
        ),
        default=0,
    )


def _has_come_up(pool: PoolState, former: int) -> bool:
    """Whether the desired revision has all engines that the `former` ones leave room for, all of
    them ready."""
    return pool.desired.ready >= pool.room - former


def _next(pools: Pools, former: Former) -> Former:
    """Takes one engine from each pool that has the largest share left to replace."""
    left = {p.role: Fraction(former[p.role], p.room) for p in pools if p.room}
    largest = max(left.values(), default=Fraction(0))
    after = {
        role: count - 1 if left.get(role) == largest else count for role, count in former.items()
    }
    after = {role: max(0, count) for role, count in after.items()}
    alone = any(former[role] and not after[role] for role in former)
    if alone and not work_together(pools):
        return dict.fromkeys(former, 0)
    return after


def _may_end(pool: PoolState, former: Former, after: Former, stable: Revisions) -> bool:
    """Whether former engines of a pool may end as planned in `after`. They may if a new engine is
    ready, if the revision was not tried yet, if others stay while one starts, or if none is ready
    or was complete last."""
    new, left = pool.desired, after[pool.role]
    if left == former[pool.role] or new.ready or not _may_have_failed(new):
        return True
    if left and planned(new) and not new.stopped:
        return True
    return not any(r.ready or r.name == stable.get(pool.role) for r in _former(pool))


def work_together(pools: Pools) -> bool:
    """Whether former engines of each pool work with desired ones of the others."""
    return len({r.fingerprint for pool in pools for r in (pool.desired, *_former(pool))}) == 1


def _is_replaced(pools: Pools, former: Former, stable: Revisions) -> bool:
    """Whether no former engine is left and the desired revisions serve. While the service sleeps:
    whether they served, or no other revision is recorded."""
    if any(former.values()):
        return False
    awake = [pool for pool in pools if pool.replicas]
    if all(pool.desired.ready for pool in awake or pools):
        return True
    return not awake and not any(_stable_of(pool, stable) for pool in pools)


def _shares(pool: PoolState, former: int, pools: Pools, stable: Revisions) -> Shares:
    """Engines of each revision: the `former` engines of a pool are shared out, the desired revision
    gets the rest. Ready former engines with partners are kept longest, then those of the last
    complete revision."""

    def worth(revision: RolloutRevision) -> tuple[bool, bool, int, str, str]:
        partners, is_stable = _partners(revision.fingerprint, pools), revision.name == last
        return partners > 0, is_stable, partners, revision.fingerprint, revision.name

    last = stable.get(pool.role, "")
    shares, left = {pool.desired.name: pool.room - former}, former
    revisions = sorted(_former(pool), key=worth, reverse=True)
    ready = [(revision, min(revision.ready, planned(revision))) for revision in revisions]
    for revision, limit in (*ready, *((revision, planned(revision)) for revision in revisions)):
        kept = shares.get(revision.name, 0)
        if count := min(max(0, limit - kept), left):
            shares[revision.name] = kept + count
            left -= count
    if left:
        shares[last] = shares.get(last, 0) + left
    return shares


def _reason(pools: Pools, former: Former, *, is_held: bool) -> tuple[str, str]:
    if are_complete(pools) or not any(p.others for p in pools) or not desired_pair(pools):
        return reason_of(pools)
    reason = HALTED if is_held else IN_PLACE
    left = ", ".join(f"pool {role}: {count}" for role, count in former.items())
    halted = f" {NEVER_READY[0].upper()}{NEVER_READY[1:]}." if is_held else ""
    return reason, (
        f"{counts_of(pools)}; an engine ends before another takes its place, and fewer serve "
        f"meanwhile; former engines left: {left}.{halted}"
    )
