"""How many engines each revision of each pool should have: one plan for all pools of a service.

Pure: it works with counts. The desired revisions of all pools are a set, and one set replaces
another as a whole:

- The desired revisions get all their engines at once, in addition to those that serve (surge).
  While something keeps them from starting, they get no more than they have.
- The stable revisions keep all their engines, ready or not. They go when the desired revisions are
  complete in every pool and the service's status says so. A smaller size applies to them at once,
  a larger one only when the desired revisions are stuck.
- Other revisions go, unless their engines serve while the desired and stable ones are too few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_contract.cluster.labels import CanaryShare, Role

from sluice_operator.service.revisions.canary_state import CanaryState

COMPLETE: Final = "Complete"
WAITS_FOR_POOL: Final = "WaitsForPool"
ROLLING_OUT: Final = "RollingOut"
STARTING: Final = "Starting"

Revisions = Mapping[Role, str]
"""The name of one revision of each pool."""
Shares = dict[str, int]
"""Engines by revision of one pool."""


@dataclass(frozen=True)
class RolloutRevision:
    """One revision of a pool in its present state."""

    name: str
    replicas: int = 0
    """Engines that its Deployment is asked for."""
    ready: int = 0
    """Engines that serve. For the desired revision: the `available` engines, because an engine that
    was ready for an instant replaces nothing."""
    available: int = 0
    """Engines that have been ready for some seconds."""
    settled: bool = False
    """All that was asked of the Deployment is done: every engine is of its newest template, and
    available."""
    fingerprint: str = ""
    """KV fingerprint of its engines: engines of two pools work together only with equal ones."""
    planned: int | None = None
    """Engines in the last plan; None: as many as its Deployment has."""
    stopped: bool = False
    """Whether something keeps its engines from starting."""
    is_late: bool = False
    """Whether its engines made no progress within their deadline."""
    is_tried: bool = True
    """Whether its Deployment was asked for an engine, which may have failed."""
    is_leaving: bool = False
    """Whether it is not in the last plan, so that its Deployment goes."""


@dataclass(frozen=True)
class PoolState:
    """One pool: its desired size and its revisions."""

    role: Role
    replicas: int
    desired: RolloutRevision
    others: tuple[RolloutRevision, ...] = ()
    lent: int = 0
    """Engines that it may have in addition to its own for now; negative: engines that it gives
    up."""

    @property
    def room(self) -> int:
        """Most engines of all its revisions together, where they replace each other in place."""
        return self.replicas + self.lent

    @property
    def is_complete(self) -> bool:
        """Whether the desired revision has shown, with all engines, that it works. A pool without
        replicas never shows it."""
        return self.replicas > 0 and self.desired.settled and self.desired.replicas == self.replicas

    @property
    def is_asleep(self) -> bool:
        """Whether no engine is asked for, and the desired revision is there with none."""
        return self.replicas == 0 and self.desired.settled and self.desired.replicas == 0

    @property
    def all(self) -> tuple[RolloutRevision, ...]:
        return (self.desired, *self.others)


@dataclass(frozen=True)
class Rollout:
    """Engines that every pool should have, and why."""

    shares: Mapping[Role, Shares]
    """Engines of each revision, the desired one first. Revisions that are not listed go."""
    stable: Revisions
    """The complete revisions to record in status. A revision is recorded before another one goes
    because of it."""
    reason: str
    message: str
    canary: Mapping[Role, CanaryShare] = field(default_factory=dict)
    """Share of requests for the desired revision, by pool; empty without a canary."""
    learnt: CanaryState | None = None
    """The canary with what was learnt about it, to record before anything follows from it."""
    is_ended: bool = False
    """Whether the canary was aborted or found worse, so that the spec is not carried out."""
    is_judged: bool = False
    """Whether routers are to be asked what they count for the canary."""


def plan_rollout(pools: tuple[PoolState, ...], stable: Revisions) -> Rollout:
    """The plan for all pools. `stable`: the set that was complete last, as noted in status; before
    any was complete, the first set that served."""
    desired = {pool.role: pool.desired.name for pool in pools}
    complete = are_complete(pools)
    reason, message = reason_of(pools)
    if complete and stable == desired:
        shares = {pool.role: {pool.desired.name: pool.replicas} for pool in pools}
        return Rollout(shares, desired, reason, message)
    kept = {
        pool.role: [r for r in pool.others if r.name == stable.get(pool.role)] for pool in pools
    }
    stopped = any(pool.desired.stopped for pool in pools)
    shares = {pool.role: _first_shares(pool, kept[pool.role], stopped) for pool in pools}
    keep_serving(pools, shares)
    unknown = not any(_has(pool, stable.get(pool.role)) for pool in pools)
    serves = all(pool.desired.ready for pool in pools)
    done = complete or (unknown and serves)
    return Rollout(shares, desired if done else stable, reason, message)


def are_complete(pools: tuple[PoolState, ...]) -> bool:
    """Whether the desired revisions have shown that they work, which they do only with each other.
    A pool without engines shows nothing; the other pools decide for it."""
    shown = any(pool.is_complete for pool in pools) and desired_pair(pools)
    return shown and all(pool.is_complete or pool.is_asleep for pool in pools)


def desired_pair(pools: tuple[PoolState, ...]) -> bool:
    """Whether the desired revisions of all pools work together. Unknown fingerprints count as
    equal."""
    return len({pool.desired.fingerprint for pool in pools} - {""}) <= 1


def _first_shares(pool: PoolState, kept: list[RolloutRevision], stopped: bool) -> Shares:
    """Engines of the desired revision and of the stable one (`kept`)."""
    engines = _desired_engines(pool, stopped) if kept else pool.replicas
    return {pool.desired.name: engines} | {
        revision.name: _kept_engines(pool, revision, stopped) for revision in kept
    }


def _desired_engines(pool: PoolState, stopped: bool) -> int:
    """Engines of the desired revision next to a stable one. `stopped`: it makes no progress. It
    then keeps the engines that it has, at least one, which shows when it works again."""
    desired = pool.desired
    if not stopped:
        return pool.replicas
    before = desired.replicas if desired.planned is None else desired.planned
    return min(pool.replicas, max(1, before))


def _kept_engines(pool: PoolState, stable: RolloutRevision, stopped: bool) -> int:
    """Engines of the stable revision. `stopped`: the desired one makes no progress. A stable
    revision without engines goes up at once, as nothing serves."""
    before = stable.replicas if stable.planned is None else stable.planned
    return pool.replicas if stopped or not before else min(before, pool.replicas)


def _has(pool: PoolState, name: str | None) -> bool:
    return any(revision.name == name for revision in pool.all)


def keep_serving(pools: tuple[PoolState, ...], shares: dict[Role, Shares]) -> None:
    """Adds to `shares` further revisions that serve now, if the engines in it are too few, or if a
    stable revision would serve no longer without them as partners."""
    for fingerprint in _fingerprints(pools, shares):
        lacking = {
            pool.role: pool.replicas - _serving(pool, pools, shares[pool.role]) for pool in pools
        }
        if not (max(lacking.values()) > 0 or _is_alone(fingerprint, pools, shares)):
            continue
        for pool in pools:
            for revision in pool.others:
                if revision.fingerprint != fingerprint or revision.name in shares[pool.role]:
                    continue
                max_added = max(1, lacking[pool.role])
                if count := min(revision.ready, max_added, pool.replicas):
                    shares[pool.role][revision.name] = count
                    lacking[pool.role] -= count


def _fingerprints(pools: tuple[PoolState, ...], shares: Mapping[Role, Shares]) -> Iterator[str]:
    """Fingerprints of serving revisions that are not kept, those with most engines first."""
    ready: dict[str, int] = {}
    for pool in pools:
        for revision in pool.others:
            if revision.name not in shares[pool.role] and revision.ready:
                before = ready.get(revision.fingerprint, 0)
                ready[revision.fingerprint] = before + revision.ready
    for fingerprint in sorted(ready, key=lambda fingerprint: (-ready[fingerprint], fingerprint)):
        if all(_ready_of(pool, fingerprint) for pool in pools):
            yield fingerprint


def _serving(pool: PoolState, pools: tuple[PoolState, ...], shares: Shares) -> int:
    """Ready engines that a pool keeps and that have partners in every other pool."""
    return sum(
        min(revision.ready, shares[revision.name])
        for revision in pool.all
        if revision.name in shares
        and all(_ready_of(other, revision.fingerprint) for other in pools)
    )


def _is_alone(
    fingerprint: str, pools: tuple[PoolState, ...], shares: Mapping[Role, Shares]
) -> bool:
    """Whether this fingerprint is the one of kept, ready engines in some pools, but not in all."""
    kept = [
        any(
            revision.name in shares[pool.role] and revision.ready
            for revision in pool.all
            if revision.fingerprint == fingerprint
        )
        for pool in pools
    ]
    return any(kept) and not all(kept)


def _ready_of(pool: PoolState, fingerprint: str) -> int:
    return sum(r.ready for r in pool.all if r.fingerprint == fingerprint)


def counts_of(pools: tuple[PoolState, ...]) -> str:
    """How many engines of the desired revisions are ready, for people."""
    return ", ".join(
        f"pool {pool.role}: {pool.desired.ready} of {pool.replicas} engines of revision "
        f"{pool.desired.name} ready"
        for pool in pools
    )


def reason_of(pools: tuple[PoolState, ...]) -> tuple[str, str]:
    """Reason and message of a roll-out with a surge, or of a first one."""
    counts = counts_of(pools)
    if not any(pool.others for pool in pools):
        complete = all(pool.is_complete or not pool.replicas for pool in pools)
        return COMPLETE if complete else STARTING, f"{counts}; there is no other revision."
    done = [pool.role for pool in pools if pool.is_complete]
    if are_complete(pools):
        return COMPLETE, f"{counts}; the former revisions go."
    if not desired_pair(pools):
        unlike = "the former revisions stay, as those of the pools cannot work together"
        return WAITS_FOR_POOL, f"{counts}; {unlike}."
    if done:
        return WAITS_FOR_POOL, f"{counts}; the former revisions stay until every pool is complete."
    return ROLLING_OUT, f"{counts}; the former revisions stay until all are."
