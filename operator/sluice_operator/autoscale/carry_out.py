"""Asks EnginePools for the engines that were decided, as the field manager of scaled replicas.

Pools shrink before others grow. By force: a number that somebody has written by hand is replaced.
Knows nothing of why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_contract.cluster.labels import Role

from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.autoscale.victims import Victims
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import ENGINE_POOL
from sluice_operator.scaled import PoolPods, ScaledPool, ScaledService


class Written(NamedTuple):
    """One pool that was asked for another number of engines."""

    role: Role
    replicas: int
    generation: int


@dataclass(frozen=True)
class Outcome:
    """What came of a decision."""

    written: tuple[Written, ...] = ()
    failed: RequestError | None = None
    """What has stopped the rest: the next tick decides anew."""
    rivals: tuple[str, ...] = ()
    """Nothing was written, as these field managers scale a pool too."""


@dataclass(frozen=True)
class PoolScaler:
    """Writes through one client."""

    client: ApiClient
    victims: Victims

    async def __call__(
        self, scaled: ScaledService, pods: Mapping[Role, PoolPods], decision: Decision
    ) -> Outcome:
        """Makes the changes that the decision wants, one after the other; `pods`: of each pool."""
        written: list[Written] = []
        for change in sorted(decision.changes, key=lambda pool: pool.desired - pool.current):
            pool = scaled.pools[change.role]
            namespace = scaled.live["metadata"]["namespace"]
            await self.victims.mark(namespace, pool.uid, pods[change.role], change.victims)
            try:
                written.append(await self._write(namespace, pool, change))
            except RequestError as error:
                return Outcome(tuple(written), error)
        return Outcome(tuple(written))

    async def _write(self, namespace: str, pool: ScaledPool, change: PoolDecision) -> Written:
        manifest = {
            "apiVersion": ENGINE_POOL.api_version,
            "kind": ENGINE_POOL.kind,
            # With its uid: one that has gone in the meantime is not made anew.
            "metadata": {
                "name": pool.name,
                "namespace": namespace,
                "uid": pool.uid,
            },
            "spec": {"replicas": change.desired},
        }
        result = await self.client.apply(ENGINE_POOL, manifest, manager=REPLICAS_MANAGER)
        return Written(change.role, change.desired, result["metadata"]["generation"])
