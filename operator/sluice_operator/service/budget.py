"""Roll-outs within a budget of GPUs: every pod that is there, comes or goes counts.

Pure. New engines come up beside the former ones where the budget has room for both sets. Where it
has not, one takes the other's place; and it starts only when the other has gone, which may take as
long as a drain. How many engines a pool should have is decided within the same budget elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.labels import Role

from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.rollout import PoolState, Revisions, Rollout, Shares, plan_rollout
from sluice_operator.service.rollout_in_place import plan_in_place

WAITS_FOR_BUDGET: Final = "WaitsForBudget"
NO_ROOM: Final = "spec.autoscaling.gpuBudget has no room for two sets of engines"


PlanRollout = Callable[[tuple[PoolState, ...], Revisions], Rollout]


@dataclass(frozen=True)
class Counted:
    """The pods of a pool, when they were last counted."""

    pods: Mapping[str, int]
    """By revision, those that are being deleted included."""
    draining: int
    """Pods that are being deleted, and hold their GPUs until they are gone."""


@dataclass(frozen=True)
class Budget:
    """GPUs that all pods of a service may hold."""

    gpus: int
    engine_gpus: Mapping[Role, int]
    """GPUs of one engine of each pool."""
    counted: Mapping[Role, Counted]


NOTHING: Final = Counted({}, 0)


def plan_within(
    pools: tuple[PoolState, ...], stable: Revisions, plan: PlanRollout, budget: Budget | None
) -> Rollout:
    """What `plan` wants, as far as the budget allows it now."""
    rollout = plan(pools, stable)
    if budget is None:
        return rollout
    if plan is plan_rollout and _gpus(rollout.shares, budget) > budget.gpus:
        rollout = plan_in_place(pools, stable)
        rollout = replace(rollout, message=f"{rollout.message} {NO_ROOM}.")
    return _held_back(pools, rollout, budget)


def counted_pods(status: Manifest) -> Counted:
    """What the status of an EnginePool says of its pods."""
    found = status.get("revisions") or ()
    by_revision = {each["name"]: each["replicas"] for each in found}
    return Counted(by_revision, status.get("draining", 0))


def _held_back(pools: tuple[PoolState, ...], rollout: Rollout, budget: Budget) -> Rollout:
    """Without new engines for which others have to go first."""
    there = {pool.role: {each.name: each.replicas for each in pool.all} for pool in pools}
    left = budget.gpus - sum(
        budget.engine_gpus[role] * _holding(found, budget.counted.get(role, NOTHING))
        for role, found in there.items()
    )
    shares: dict[Role, Shares] = {}
    waits = 0
    for role, wanted in rollout.shares.items():
        gpus, shares[role] = budget.engine_gpus[role], {}
        for name, count in wanted.items():
            more = count - there[role].get(name, 0)
            new = min(more, max(0, left) // gpus) if more > 0 and gpus else more
            left -= gpus * max(0, new)
            waits += more - new
            shares[role][name] = there[role].get(name, 0) + new
    if not waits:
        return rollout
    text = f"{rollout.message} {waits} engines wait for GPUs of the budget of {budget.gpus}."
    return replace(rollout, shares=shares, reason=WAITS_FOR_BUDGET, message=text)


def _holding(asked: Mapping[str, int], counted: Counted) -> int:
    """Most pods of a pool that may hold GPUs now: one that was told to go counts until it was seen
    to be gone, and one that was asked for before it is seen."""
    names = asked.keys() | counted.pods.keys()
    there = sum(max(asked.get(name, 0), counted.pods.get(name, 0)) for name in names)
    return there + counted.draining


def _gpus(shares: Mapping[Role, Mapping[str, int]], budget: Budget) -> int:
    return sum(budget.engine_gpus[role] * sum(each.values()) for role, each in shares.items())
