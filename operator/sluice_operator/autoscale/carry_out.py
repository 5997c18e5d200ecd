"""Writes decided replicas to EnginePools, as the field manager of scaled replicas.

Pools shrink before others grow. A number written by hand is replaced. Pods that should go first get
a lower deletion cost; ReplicaSets use it to choose among ready pods. If a cost cannot be written,
scaling continues. Engines that move to the other pool are another matter: see `mover`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.decision import Decision
from sluice_contract.cluster.labels import Role

from sluice_operator.autoscale.events import ScalingOutcome, Written
from sluice_operator.autoscale.mover import Mover, write_replicas
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import POD, Manifest
from sluice_operator.log import fields
from sluice_operator.scaled import DELETION_COST, VICTIM, PoolPods, ScaledService


@dataclass(frozen=True)
class PoolScaler:
    """Carries out decisions by writes through one client."""

    client: ApiClient
    victims: Victims
    mover: Mover

    async def __call__(
        self, scaled: ScaledService, pods: Mapping[Role, PoolPods], decision: Decision
    ) -> ScalingOutcome:
        """Makes the decided changes, one after the other. `pods`: those of each pool. While engines
        move, which takes seconds, nothing else is changed."""
        for role, pool in scaled.pools.items():
            if pool.move is not None:
                return await self.mover.go_on(scaled, role, decision)
        if decision.move is not None and self.mover.may_begin(scaled, decision):
            return await self.mover.begin(scaled, decision.move)
        written: list[Written] = []
        for change in sorted(decision.changes, key=lambda pool: pool.desired - pool.current):
            uid = scaled.pools[change.role].uid
            await self.victims.mark(scaled.namespace, uid, pods[change.role], change.victims)
            try:
                written.append(
                    await write_replicas(self.client, scaled, change.role, change.desired)
                )
            except RequestError as error:
                return ScalingOutcome(tuple(written), error)
        return ScalingOutcome(tuple(written))


VICTIMS_MANAGER: Final = "sluice-operator-victims"

logger = logging.getLogger(__name__)


class Victims:
    """Marks pods that should go first, and removes marks from pods that stayed, also marks of an
    earlier operator process."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._marked: dict[str, frozenset[str]] = {}

    async def mark(self, namespace: str, pool: str, pods: PoolPods, names: Iterable[str]) -> None:
        """Marks the pods of `names`, and unmarks other `pods`; `pool` is the uid of their
        EnginePool. Names come from routers; names that are not pods of the pool are ignored."""
        victims = pods.names & frozenset(names)
        before = pods.victims | self._marked.pop(pool, frozenset())
        for name in sorted(before - victims):
            await self._write(namespace, name, {})
        for name in sorted(victims):
            await self._write(namespace, name, {"annotations": {DELETION_COST: VICTIM}})
        if victims:
            self._marked[pool] = victims

    async def _write(self, namespace: str, name: str, metadata: Manifest) -> None:
        manifest = {
            "apiVersion": POD.api_version,
            "kind": POD.kind,
            "metadata": {"name": name, "namespace": namespace, **metadata},
        }
        try:
            await self._client.apply(POD, manifest, manager=VICTIMS_MANAGER)
        except RequestError as error:  # the pod may be gone: its mark creates no pod
            logger.debug("deletion cost not written", extra=fields(pod=name, error=error))
