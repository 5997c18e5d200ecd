"""Roll-outs within a budget of GPUs: every pod that exists, comes or goes counts.

Pure. If the budget has room for both sets, new engines come up in addition to the former ones.
Otherwise a new engine starts only when a former one has gone, which may take as long as a drain.
The size of pools keeps the budget too, which is decided elsewhere.

Held GPUs are counted from pods, by labels, also from pods whose EnginePool is gone. A pod holds its
GPUs until its drain ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.api.pools import gpu_count
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.conditions.pods import is_draining, is_finished
from sluice_operator.conditions.reasons import CANARY_AT_STEP
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import ENGINE
from sluice_operator.scaled import move_to
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.resolve.replicas import former_pools, pool_gpus
from sluice_operator.service.rollout.in_place import plan_in_place, planned
from sluice_operator.service.rollout.lent_gpus import with_lent_gpus
from sluice_operator.service.rollout.surge import (
    PoolState,
    Revisions,
    Rollout,
    RolloutRevision,
    Shares,
    plan_rollout,
)

WAITS_FOR_BUDGET: Final = "WaitsForBudget"
NO_ROOM: Final = "spec.autoscaling.gpuBudget has no room for two sets of engines"
FORMER_STAYS: Final = (
    "they stay until those of the new one are complete, so a switch needs "
    "spec.autoscaling.gpuBudget for both"
)

PlanRollout = Callable[[tuple[PoolState, ...], Revisions], Rollout]


@dataclass(frozen=True)
class PodCounts:
    """The pods of a pool, when they were last counted."""

    live: Mapping[str, int]
    """Pods by revision, without those that are being deleted."""
    draining: int
    """Pods that are being deleted, and hold their GPUs until they are gone."""


@dataclass(frozen=True)
class Budget:
    """GPUs that all pods of a service may hold."""

    gpus: int
    """GPUs for all pods, even pods that exist only while engines move to the other pool. These pods
    find no place in a cluster without further GPUs, and go after seconds."""
    engine_gpus: Mapping[Role, int]
    """GPUs of one engine of each pool."""
    counted: Mapping[Role, PodCounts]
    pod_surges: Mapping[Role, int] = field(default_factory=dict)
    """Engines that already may come in addition to the others, where pods are being replaced."""
    former_gpus: int = 0
    """GPUs held by engines of another mode, until the desired pools serve and these engines have
    drained."""

    @property
    def left(self) -> int:
        """GPUs that the pools of this mode may hold."""
        return self.gpus - self.former_gpus


NO_PODS: Final = PodCounts({}, 0)


def budget_of(observed: ServiceObserved, spec: InferenceServiceSpec) -> Budget | None:
    """The service's budget and who holds how much of it; None where there is none."""
    if spec.gpu_budget is None:
        return None
    gpus = {role: gpu_count(spec.pool(role).accelerator) for role in spec.roles}
    counted = {role: _counted(_engines(observed.engines, role)) for role in spec.roles}
    surges = {
        Role(pool["spec"]["role"]): pool["spec"].get("podSurge", 0)
        for pool in of_kind(observed.children, ENGINE_POOL)
    }
    moving = sum(
        gpus[move.source] * move.engines
        for pool in of_kind(observed.children, ENGINE_POOL)
        if (move := move_to(pool)) and move.source in gpus
    )
    former = other_mode_gpus(observed, spec)
    return Budget(spec.gpu_budget + moving, gpus, counted, surges, former)


def _counted(pods: Iterable[Manifest]) -> PodCounts:
    all_pods = tuple(pods)
    live = [pod for pod in all_pods if not is_draining(pod)]
    return PodCounts(Counter(map(revision_of, live)), len(all_pods) - len(live))


def other_mode_gpus(observed: ServiceObserved, spec: InferenceServiceSpec) -> int:
    """GPUs of engines of roles that the mode does not have, including engines that their pools have
    yet to make."""
    former = [role for role in Role if role not in spec.roles]
    gpus = sum(_gpus_of(pod) for role in former for pod in _engines(observed.engines, role))
    for pool in former_pools(observed.service, observed.children, spec):
        engines = _engines(observed.engines, Role(pool["spec"]["role"]))
        lacking = pool["spec"]["replicas"] - sum(not is_draining(pod) for pod in engines)
        gpus += pool_gpus(pool) * max(0, lacking)
    return gpus


def _engines(pods: tuple[Manifest, ...], role: Role) -> list[Manifest]:
    """The pods of a role that hold GPUs, or will."""
    return [
        pod
        for pod in pods
        if pod["metadata"]["labels"].get(labels.ROLE) == role and not is_finished(pod)
    ]


def _gpus_of(pod: Manifest) -> int:
    """GPUs of an engine whose pool may be gone: its most frequent device. RDMA devices are at most
    one."""
    limits = next(
        (
            (container.get("resources") or {}).get("limits") or {}
            for container in pod["spec"]["containers"]
            if container["name"] == ENGINE
        ),
        {},
    )
    devices = (int(count) for name, count in limits.items() if _is_device(name))
    return max(devices, default=0)


def _is_device(resource: str) -> bool:
    return "/" in resource


def plan_within(
    pools: tuple[PoolState, ...], stable: Revisions, plan: PlanRollout, budget: Budget | None
) -> Rollout:
    """`plan`, limited to what the budget allows now."""
    if budget is None:
        return plan(pools, stable)
    pools = _of_engines_that_stay(pools, budget.counted)
    rollout = plan(pools, stable)
    if plan is plan_rollout and _gpus(rollout.shares, budget) > budget.left and _replaces(pools):
        rollout = plan_in_place(with_lent_gpus(pools, budget.engine_gpus, budget.left), stable)
        rollout = replace(rollout, message=f"{rollout.message} {NO_ROOM}.")
    return _held_back(pools, rollout, budget)


def _of_engines_that_stay(
    pools: tuple[PoolState, ...], counted: Mapping[Role, PodCounts]
) -> tuple[PoolState, ...]:
    """The pools, where an engine that already leaves, by the last plan or by its pod, does not
    count as ready. Its Deployment may not have shrunk yet in what was read; asked for the engine
    again, it would make a new pod."""

    def of_stay(role: Role, revision: RolloutRevision) -> RolloutRevision:
        live = counted.get(role, NO_PODS).live.get(revision.name, 0)
        ready = min(revision.ready, revision.replicas, planned(revision), live)
        return replace(revision, ready=ready)

    return tuple(
        replace(
            pool,
            desired=of_stay(pool.role, pool.desired),
            others=tuple(of_stay(pool.role, revision) for revision in pool.others),
        )
        for pool in pools
    )


def pod_surges(
    pools: tuple[PoolState, ...], rollout: Rollout, budget: Budget | None, replaced: Set[Role]
) -> dict[Role, int]:
    """Extra engines of pools whose pods are replaced while their revision stays, by role.
    `replaced`: pools whose replacement is about to begin. It needs room for a new pod and a
    draining one. A surge stays until every pod is new."""
    if budget is None:
        return {}
    left = budget.left - sum(_gpus_held(pool, rollout, budget) for pool in pools)
    surges = {}
    for pool in pools:
        gpus, is_replaced = budget.engine_gpus[pool.role], pool.role in replaced
        if budget.pod_surges.get(pool.role) and (is_replaced or not pool.desired.settled):
            surges[pool.role] = 1
        elif is_replaced and 2 * gpus <= left:
            surges[pool.role] = 1
            left -= 2 * gpus
    return surges


def _gpus_held(pool: PoolState, rollout: Rollout, budget: Budget) -> int:
    """GPUs held by the pods of a pool, including pods that are to be made."""
    replicas = dict(rollout.shares[pool.role])
    for revision in pool.all:
        replicas[revision.name] = max(revision.replicas, replicas.get(revision.name, 0))
    return budget.engine_gpus[pool.role] * _holding(pool.role, replicas, budget)


def _held_back(pools: tuple[PoolState, ...], rollout: Rollout, budget: Budget) -> Rollout:
    """The plan without new engines that must wait until others have gone. An engine is new if the
    last plan does not have it. Engines of the last plan, and of Deployments that have not shrunk
    yet, hold GPUs. The reason of a canary that has its share, or has ended, stays."""
    last = {pool.role: {r.name: planned(r) for r in pool.all} for pool in pools}
    left = budget.left
    for pool in pools:
        most = {r.name: max(r.replicas, planned(r)) for r in pool.all}
        left -= budget.engine_gpus[pool.role] * _holding(pool.role, most, budget)
    shares: dict[Role, Shares] = {role: dict(of_pool) for role, of_pool in rollout.shares.items()}
    kept = _without_vain_ends(pools, rollout, budget)
    waits, not_yet = 0, set[Role]()
    for is_canary in (False, True):  # no canary engine comes while a stable one waits
        if is_canary:
            not_yet = set(rollout.canary) if waits else _canary_waits(rollout, last, left, budget)
        for role, name in _names(rollout, is_canary=is_canary):
            gpus, before = budget.engine_gpus[role], last[role].get(name, 0)
            more = kept[role][name] - before
            more = min(0, more) if role in not_yet else more
            new = min(more, max(0, left) // gpus) if more > 0 and gpus else more
            left -= gpus * max(0, new)
            waits += max(0, rollout.shares[role][name] - before - max(0, new))
            shares[role][name] = before + new
    if not waits:
        return rollout
    text = f"{rollout.message} {waits} engines wait for GPUs of the budget of {budget.gpus}."
    if budget.former_gpus:
        text += f" Pools of the former mode hold {budget.former_gpus}: {FORMER_STAYS}."
    is_kept = rollout.is_ended or rollout.reason in CANARY_AT_STEP
    reason = rollout.reason if is_kept else WAITS_FOR_BUDGET
    return replace(rollout, shares=shares, reason=reason, message=text)


def _names(rollout: Rollout, *, is_canary: bool) -> Iterator[tuple[Role, str]]:
    """The revisions of all pools that are those of the canary, or all others."""
    for role, of_pool in rollout.shares.items():
        share = rollout.canary.get(role)
        new = share.revision if share and share.revision != share.former else None
        yield from ((role, name) for name in of_pool if (name == new) is is_canary)


def _canary_waits(
    rollout: Rollout, last: Mapping[Role, Shares], left: int, budget: Budget
) -> set[Role]:
    """The pools in which a canary waits, as there is no room for the first engine of each: an
    engine without one of the other pool would serve nobody."""
    first = {
        role
        for role, name in _names(rollout, is_canary=True)
        if rollout.shares[role][name] and not last[role].get(name)
    }
    return first if sum(budget.engine_gpus[role] for role in first) > left else set()


def _without_vain_ends(
    pools: tuple[PoolState, ...], rollout: Rollout, budget: Budget
) -> Mapping[Role, Shares]:
    """The shares, in which serving engines stay while draining pods hold the GPUs of their
    successors. A draining pod may be on a lost node, and never leave."""
    draining = sum(
        gpus * budget.counted.get(role, NO_PODS).draining
        for role, gpus in budget.engine_gpus.items()
    )
    if not draining or _gpus(rollout.shares, budget) + draining <= budget.left:
        return rollout.shares
    return {pool.role: _with_serving(pool, rollout.shares[pool.role]) for pool in pools}


def _with_serving(pool: PoolState, desired: Shares) -> Shares:
    """The shares of a pool in which shrinking revisions keep their ready engines, up to the pool's
    size, while others grow less."""
    last = {revision.name: planned(revision) for revision in pool.all}
    shares = {name: min(count, last.get(name, 0)) for name, count in desired.items()}
    left = pool.replicas - sum(shares.values())
    for revision in pool.all:
        lost = revision.ready - shares.get(revision.name, 0)
        if revision.name in shares and (kept := min(lost, left)) > 0:
            shares[revision.name] += kept
            left -= kept
    for name, count in desired.items():
        new = min(max(0, left), max(0, count - shares[name]))
        shares[name], left = shares[name] + new, left - new
    return shares


def _holding(role: Role, replicas: Mapping[str, int], budget: Budget) -> int:
    """Most pods of a pool that may hold GPUs now. A pod that is being deleted counts until it is
    gone; a requested one counts before it is seen."""
    counted, surge = budget.counted.get(role, NO_PODS), budget.pod_surges.get(role, 0)
    names = replicas.keys() | counted.live.keys()
    there = sum(max(replicas.get(name, 0), counted.live.get(name, 0)) for name in names)
    return max(there, sum(replicas.values()) + surge) + counted.draining


def _gpus(shares: Mapping[Role, Mapping[str, int]], budget: Budget) -> int:
    return sum(budget.engine_gpus[role] * sum(of_pool.values()) for role, of_pool in shares.items())


def _replaces(pools: tuple[PoolState, ...]) -> bool:
    return any(pool.others for pool in pools)
