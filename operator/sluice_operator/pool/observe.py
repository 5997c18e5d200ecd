"""Reads one EnginePool and all that concerns it, straight from the API server.

No cache: what is read is never older than the event that led to the reconcile.
Reads only; decides nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sluice_contract import labels

from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    POOL_CHILDREN,
    Manifest,
    is_being_deleted,
)


@dataclass(frozen=True)
class PoolObserved:
    """One EnginePool and all that its plan and its status depend on."""

    pool: Manifest
    """The EnginePool as read, status included."""
    service: Manifest | None = None
    """The InferenceService that controls it; None when it is gone."""
    children: tuple[Manifest, ...] = ()
    """Every object of the kinds in `POOL_CHILDREN` with the pool's service and role labels."""
    pods: tuple[Manifest, ...] = ()
    """Engine pods with the pool's service and role labels, of every revision."""


@dataclass(frozen=True)
class PoolObserver:
    """Observes EnginePools through one client."""

    client: ApiClient

    async def observe(self, key: Key) -> PoolObserved | None:
        """All about one EnginePool; None when it is gone or being deleted."""
        pool = await self.client.get(ENGINE_POOL, key.namespace, key.name)
        if pool is None or is_being_deleted(pool):
            return None
        # Not by the pool's own labels, which anybody may have edited.
        name, role = pool["spec"]["serviceName"], pool["spec"]["role"]
        selector = f"{labels.SERVICE}={name},{labels.ROLE}={role}"
        service, children, pods = await asyncio.gather(
            self._controller(pool),
            self.client.list_kinds(POOL_CHILDREN, key.namespace, selector),
            self.client.list_objects(POD, key.namespace, selector),
        )
        return PoolObserved(pool, service, children, pods)

    async def _controller(self, pool: Manifest) -> Manifest | None:
        """The service that controls the pool, unless a new one has taken the name."""
        for owner in pool["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner["kind"] == INFERENCE_SERVICE.kind:
                namespace = pool["metadata"]["namespace"]
                service = await self.client.get(INFERENCE_SERVICE, namespace, owner["name"])
                if service is not None and service["metadata"]["uid"] == owner["uid"]:
                    return service
        return None
