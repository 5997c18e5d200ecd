"""Reads the cluster into one frozen value per reconcile, straight from the API server.

No cache: what is read is never older than the event that asked for it, so a reconcile needs to
know nothing about what earlier ones did. Reads only; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract import labels

from sluice_operator.apply import WRITTEN, address
from sluice_operator.client import ApiClient
from sluice_operator.clock import Clock
from sluice_operator.errors import ApiError
from sluice_operator.keys import Key
from sluice_operator.observed import (
    API_SERVER_PORTS,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    NODE,
    POD,
    POOL_CHILDREN,
    SERVICE_CHILDREN,
    Images,
    Kind,
    Manifest,
    Plan,
    PoolObserved,
    ServiceObserved,
    controller_uid,
)

FORBIDDEN: Final = 403
NODES_SECONDS: Final = 60.0


class Nodes:
    """The cluster's nodes, read at most once a minute: they are many, and change slowly."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read_at: float | None = None
        self._nodes: tuple[Manifest, ...] | None = None

    async def list(self) -> tuple[Manifest, ...] | None:
        """None when the install does not let the operator read nodes."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at >= NODES_SECONDS:
                self._nodes = await self._read()
                self._read_at = now
            return self._nodes

    async def _read(self) -> tuple[Manifest, ...] | None:
        try:
            return await self._client.list_objects(NODE, None)
        except ApiError as error:
            if error.status == FORBIDDEN:
                return self._nodes  # also for a moment after the API server's start
            raise


@dataclass(frozen=True)
class Observer:
    """Makes observations through one client."""

    client: ApiClient
    images: Images
    nodes: Nodes
    api_server_ports: tuple[int, ...] = API_SERVER_PORTS

    async def service(self, key: Key) -> ServiceObserved | None:
        """All about one InferenceService; None when it is gone or going."""
        service = await self.client.get(INFERENCE_SERVICE, key.namespace, key.name)
        if service is None or is_going(service):
            return None
        mine = f"{labels.SERVICE}={key.name}"
        children, pods, nodes = await asyncio.gather(
            self._all(SERVICE_CHILDREN, key.namespace, mine),
            self.client.list_objects(
                POD, key.namespace, f"{mine},{labels.ROLE}={labels.ROUTER_ROLE}"
            ),
            self.nodes.list(),
        )
        return ServiceObserved(
            service,
            self.images,
            children,
            pods,
            nodes,
            api_server_ports=self.api_server_ports,
        )

    async def pool(self, key: Key) -> PoolObserved | None:
        """All about one EnginePool; None when it is gone or going."""
        pool = await self.client.get(ENGINE_POOL, key.namespace, key.name)
        if pool is None or is_going(pool):
            return None
        # Not by the pool's own labels, which anybody may have edited.
        name, role = pool["spec"]["serviceName"], pool["spec"]["role"]
        mine = f"{labels.SERVICE}={name},{labels.ROLE}={role}"
        service, children, pods = await asyncio.gather(
            self._controller(pool),
            self._all(POOL_CHILDREN, key.namespace, mine),
            self.client.list_objects(POD, key.namespace, mine),
        )
        return PoolObserved(pool, service, children, pods)

    async def standing(self, observed: ServiceObserved, plan: Plan) -> tuple[Manifest, ...]:
        """What is there already under the names of the objects that the plan would create."""
        known = {address(child) for child in observed.children}
        new = (desired for desired in plan.apply if address(desired) not in known)
        found = await asyncio.gather(*map(self._standing, new))
        return tuple(item for item in found if item is not None)

    async def _standing(self, desired: Manifest) -> Manifest | None:
        kind = WRITTEN[desired["apiVersion"], desired["kind"]]
        metadata = desired["metadata"]
        return await self.client.get(kind, metadata["namespace"], metadata["name"])

    async def _controller(self, pool: Manifest) -> Manifest | None:
        """The service that controls the pool, unless a new one has taken the name."""
        for owner in pool["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner["kind"] == INFERENCE_SERVICE.kind:
                namespace = pool["metadata"]["namespace"]
                service = await self.client.get(INFERENCE_SERVICE, namespace, owner["name"])
                if service is not None and service["metadata"]["uid"] == owner["uid"]:
                    return service
        return None

    async def _all(
        self, kinds: Iterable[Kind], namespace: str, selector: str
    ) -> tuple[Manifest, ...]:
        listings = (self.client.list_objects(kind, namespace, selector) for kind in kinds)
        return tuple(item for items in await asyncio.gather(*listings) for item in items)


def with_standing(observed: ServiceObserved, found: Iterable[Manifest]) -> ServiceObserved:
    """The observation, completed: our own objects that have lost their label, and foreign ones."""
    uid = observed.service["metadata"]["uid"]
    ours = tuple(item for item in found if controller_uid(item) == uid)
    foreign = tuple(item for item in found if controller_uid(item) != uid)
    return replace(observed, children=(*observed.children, *ours), foreign=foreign)


def is_going(item: Manifest) -> bool:
    """Whether the object is being deleted."""
    return item["metadata"].get("deletionTimestamp") is not None
