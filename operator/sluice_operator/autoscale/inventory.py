"""Inventory of scaled services: what reconciles saw, what was written since, and who else scales
them.

A tick reads nothing from the API server. Every event of a pod leads to a reconcile of its pool,
which counts the pods and reports the counts here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from sluice_autoscaler.sample import PoolSample
from sluice_contract.cluster.labels import Role

from sluice_operator.autoscale.events import Written
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.scaled import MoveInProgress, PoolPods, ScaledPool, ScaledService

AGAIN_SECONDS: Final = 300.0
"""Seconds within which two writes from outside count as another scaler."""
CLAIM_SECONDS: Final = 10.0
"""Age up to which a pod without a ResourceClaim counts as new: Kubernetes makes one within a
second."""
SILENT_SECONDS: Final = 600.0
"""Time without another scaler's writes after which the operator scales the pool again."""

Write = tuple[str, str]
"""A field manager, and when it wrote last."""


@dataclass
class _Outside:
    writes: frozenset[Write]
    times: list[float] = field(default_factory=list)
    managers: tuple[str, ...] = ()


class OtherScalers:
    """Detects another scaler of a pool, so that two do not write against each other.

    One write from outside is replaced: a person tried something. A second write soon after is a
    HorizontalPodAutoscaler or a script. The operator then leaves the pool alone until the other
    scaler has been silent for long. Writes are counted by the uid of the EnginePool.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Outside] = {}

    def note(self, uid: str, writes: frozenset[Write], now: float) -> None:
        """Notes field managers other than the operator that own replicas of a pool, and since when.
        Those of the first call do not count as rivals: they scaled the pool before."""
        outside = self._seen.setdefault(uid, _Outside(writes))
        if writes - outside.writes:
            outside.times = [*outside.times[-1:], now]
            outside.managers = tuple(sorted({manager for manager, _ in writes}))
        outside.writes = writes

    def rivals(self, uid: str, now: float) -> tuple[str, ...]:
        """Who else scales the pool; empty if nobody does."""
        outside = self._seen.get(uid)
        if outside is None or len(outside.times) < 2:
            return ()
        first, last = outside.times
        contested = last - first <= AGAIN_SECONDS and now - last <= SILENT_SECONDS
        return outside.managers if contested else ()

    def forget(self, uid: str) -> None:
        """The pool is gone."""
        self._seen.pop(uid, None)


class ScalingInventory:
    """Services by key, and their pools by role. Observations older than our own last write are
    ignored."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._other_scalers = OtherScalers()
        self._services: dict[Key, ScaledService] = {}
        self._pods: dict[Key, dict[Role, PoolPods]] = {}

    def service(self, key: Key) -> ScaledService | None:
        """The service, where it is to be scaled and all its pools were counted."""
        service, pods = self._services.get(key), self._pods.get(key, {})
        if service is None or not (service.pools.keys() | service.fixed_gpus.keys()) <= pods.keys():
            return None
        return service

    def service_seen(self, key: Key, scaled: ScaledService | None) -> None:
        """Notes a service; None: it is not scaled."""
        if scaled is None:
            self._services.pop(key, None)
            return
        before, now = self._services.get(key), self._clock.monotonic()
        for pool in scaled.pools.values():
            self._other_scalers.note(pool.uid, pool.others, now)
        pools = {role: _newer(pool, before, role) for role, pool in scaled.pools.items()}
        self._services[key] = replace(scaled, pools=pools)

    def pool_seen(self, key: Key, role: Role, pods: PoolPods) -> None:
        """Notes the pods of a pool, and its current replicas."""
        self._pods.setdefault(key, {})[role] = pods
        self._note(key, role, pods.replicas, pods.generation)

    def replicas_written(self, key: Key, written: Written) -> None:
        """Records the replicas that the operator has just written to a pool."""
        self._note(key, *written)

    def forget(self, key: Key) -> None:
        """The service is gone."""
        if (service := self._services.pop(key, None)) is not None:
            for pool in service.pools.values():
                self._other_scalers.forget(pool.uid)
        self._pods.pop(key, None)

    def rivals(self, key: Key) -> tuple[str, ...]:
        """Other scalers of the service's pools; empty if there are none."""
        now, pools = self._clock.monotonic(), self._services[key].pools.values()
        rivals = (self._other_scalers.rivals(pool.uid, now) for pool in pools)
        return tuple(dict.fromkeys(name for names in rivals for name in names))

    def pool_samples(self, key: Key) -> Mapping[Role, PoolSample]:
        """The scaled pools of a service that is known, as they are now."""
        pods, now = self._pods[key], self._clock.now()
        pools = self._services[key].pools
        return {role: _sample(role, pools, pods[role], now) for role in pools}

    def pods(self, key: Key) -> Mapping[Role, PoolPods]:
        """The pods of every pool of a service that is known."""
        return self._pods[key]

    def fixed_gpus(self, key: Key) -> int:
        """GPUs that the service's unscaled pools and other modes hold, or will hold soon."""
        service, pods = self._services[key], self._pods[key]
        return service.former_gpus + sum(
            gpus * (pods[role].replicas + pods[role].surplus(pods[role].replicas))
            for role, gpus in service.fixed_gpus.items()
        )

    def _note(
        self,
        key: Key,
        role: Role,
        replicas: int,
        generation: int,
        move: MoveInProgress | None = None,
    ) -> None:
        service = self._services.get(key)
        pool = service.pools.get(role) if service else None
        if service and pool and pool.generation < generation:
            moves = pool.move if move is None else move
            noted = replace(pool, replicas=replicas, generation=generation, move=moves)
            self._services[key] = replace(service, pools={**service.pools, role: noted})


def _newer(pool: ScaledPool, before: ScaledService | None, role: Role) -> ScaledPool:
    """`pool` with the newest replicas that are known of the same EnginePool."""
    recorded = before.pools.get(role) if before else None
    if recorded is None or recorded.uid != pool.uid or recorded.generation <= pool.generation:
        return pool
    return replace(
        pool, replicas=recorded.replicas, generation=recorded.generation, move=recorded.move
    )


def _sample(
    role: Role, pools: Mapping[Role, ScaledPool], pods: PoolPods, now: datetime
) -> PoolSample:
    """The sample of a pool. Engines that are to move to the other pool count in that pool
    already."""
    new = sum((now - made).total_seconds() < CLAIM_SECONDS for made in pods.claimless)
    moves = (pool.move for pool in pools.values() if pool.move and pool.move.source is role)
    moving = sum(move.engines for move in moves if pools[role].replicas == move.source_before)
    replicas = pools[role].replicas - moving
    return PoolSample(
        role=role,
        replicas=replicas,
        ready=pods.ready,
        starting=pods.starting,
        unschedulable=pods.unschedulable - new,
        queue=pods.queue,
        queued=pods.queued,
        surplus=pods.surplus(replicas),
        moving=moving,
        start_seconds=pods.start_seconds,
        start_phases=pods.start_phases,
        start_pod=pods.start_pod,
    )
