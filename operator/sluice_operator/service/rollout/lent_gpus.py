"""Roll-outs of a pool's only engine under a budget: it serves until its successor does, if both can
have GPUs.

Pure. Free GPUs of the budget are used first. Then the other pool gives up engines for a while, but
keeps one engine. If the revisions of two pools work only with their own kind, it keeps one former
and one new engine. Where both sources are too small, nobody is served until the successor is ready;
the status says so before the engine ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.rollout.in_place import Pools, planned, planned_former, work_together
from sluice_operator.service.rollout.surge import PoolState, Rollout, RolloutRevision

INTERRUPTS: Final = "InterruptsService"


def with_lent_gpus(pools: Pools, gpus: Mapping[Role, int], limit: int) -> Pools:
    """The pools, each with the room that it has now. `gpus`: GPUs of one engine of each pool;
    `limit`: GPUs of all pools."""
    if not all(pool.replicas for pool in pools):
        return pools
    alike = work_together(pools)
    useful = alike or all(pool.desired.ready for pool in pools)
    after = {pool.role: _without_former(pool) if useful else pool for pool in pools}
    after = _balanced(after, gpus, limit, least=1) or after
    waiting = [pool for pool in after.values() if pool.replicas == 1 and planned_former(pool)]
    for pool in sorted(waiting, key=lambda pool: -planned(pool.desired)):
        if _may_be_tried(pool.desired):
            lent = after | {pool.role: replace(pool, lent=1)}
            after = _balanced(lent, gpus, limit, least=1 if alike else 2) or after
    return tuple(after.values())


def _without_former(pool: PoolState) -> PoolState:
    """A pool of one engine whose successor serves: the former one may end."""
    if pool.replicas > 1 or not pool.desired.ready:
        return pool
    others = (replace(revision, replicas=0, planned=0, ready=0) for revision in pool.others)
    return replace(pool, others=tuple(others))


def _may_be_tried(desired: RolloutRevision) -> bool:
    """Whether a revision was not tried yet, or starts and may still come up."""
    return not desired.is_tried or (planned(desired) > 0 and not desired.is_late)


def _balanced(
    pools: dict[Role, PoolState], gpus: Mapping[Role, int], limit: int, least: int
) -> dict[Role, PoolState] | None:
    """The pools, of which those with more than `least` engines have given up engines until the
    limit is kept; None if that is impossible."""
    after = dict(pools)
    while sum(gpus[role] * pool.room for role, pool in after.items()) > limit:
        lenders = [pool for role, pool in after.items() if gpus[role] and pool.room > least]
        if not (lenders := [pool for pool in lenders if pool.replicas > 1]):
            return None
        lender = max(lenders, key=lambda pool: pool.room)
        after[lender.role] = replace(lender, lent=lender.lent - 1)
    return after


def announced_first(pools: Pools, rollout: Rollout, *, is_announced: bool) -> Rollout:
    """The plan. If it would end all service and the status does not announce that yet
    (`is_announced`): a plan that ends nothing and announces it."""
    roles = () if is_announced else tuple(_interrupted(pools, rollout))
    if not roles:
        return rollout
    shares = {
        pool.role: dict.fromkeys(rollout.shares[pool.role], 0)
        | {r.name: planned(r) for r in pool.all if not r.is_leaving}
        for pool in pools
    }
    which = " and ".join(f"pool {role}" for role in roles)
    text = f"No engine of {which} will serve until its successor is ready: there is no room for "
    text += f"both. {rollout.message}"
    return replace(rollout, shares=shares, reason=INTERRUPTS, message=text)


def says_interrupted(service: Manifest) -> bool:
    """Whether the status announces, for the present spec, that the service will be interrupted.
    False while the service is paused, because the step is then never taken."""
    if service["spec"].get("paused"):
        return False
    status = service.get("status") or {}
    is_current = status.get("observedGeneration") == service["metadata"].get("generation")
    return is_current and (status.get("rollout") or {}).get("reason") == INTERRUPTS


def _interrupted(pools: Pools, rollout: Rollout) -> Iterator[Role]:
    """Pools without a serving engine after the plan, if the service serves now and would not
    afterwards."""
    awake = [pool for pool in pools if pool.replicas]
    before = [_prints(pool, {r.name: planned(r) for r in pool.all}) for pool in awake]
    after = [_prints(pool, rollout.shares[pool.role]) for pool in awake]
    if not _meet(before) or _meet(after):
        return
    for pool, prints in zip(awake, after, strict=True):
        if not prints or all(after):
            yield pool.role


def _prints(pool: PoolState, shares: Mapping[str, int]) -> set[str]:
    """The fingerprints of ready engines among these `shares`."""
    return {r.fingerprint for r in pool.all if min(r.ready, shares.get(r.name, 0)) > 0}


def _meet(prints: Sequence[set[str]]) -> bool:
    return bool(set.intersection(*prints)) if prints else False
