"""Reads for reconciles: from the store where it holds a kind, else from the API server.

A reconcile that is about to do what cannot be undone reads the kinds in `DECISIVE` from the API
server, whatever the store holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sluice_contract import labels

from sluice_operator.informer.keys import RECONCILED
from sluice_operator.informer.store import Objects
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    Kind,
    Manifest,
)

DECISIVE: Final = (INFERENCE_SERVICE, ENGINE_POOL, DEPLOYMENT, POD)
"""What a plan takes away follows from these: who asks for how many engines, which there are, and
what they use."""


class Reader(Protocol):
    """What observing needs. All raise `ApiError` or `UnavailableError`."""

    def certain(self) -> Reader:
        """A reader that does not rely on what is remembered of the kinds in `DECISIVE`."""
        ...

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None: ...

    async def list_objects(
        self, kind: Kind, namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]: ...

    async def list_kinds(
        self, kinds: Iterable[Kind], namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]: ...


@dataclass(frozen=True)
class StoreReader:
    """Reads kinds in `held` from memory, others through `client`."""

    held: Mapping[Kind, Objects]
    client: ApiClient

    def certain(self) -> StoreReader:
        """See `Reader.certain`."""
        held = {kind: objects for kind, objects in self.held.items() if kind not in DECISIVE}
        return StoreReader(held, self.client)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """As `ApiClient.get`. Children are watched by a label that may be lost, so one that the
        store does not have may still be there: these are always asked for."""
        if kind in RECONCILED and kind in self.held:
            return self.held[kind].get(namespace, name)
        return await self.client.get(kind, namespace, name)

    async def list_objects(
        self, kind: Kind, namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]:
        """As `ApiClient.list_objects`, for a selector of a service's label and, maybe, a role's."""
        if kind not in self.held:
            return await self.client.list_objects(kind, namespace, label_selector)
        wanted = dict(term.split("=", 1) for term in label_selector.split(","))
        service, role = wanted.pop(labels.SERVICE), wanted.pop(labels.ROLE, None)
        assert not wanted, f"the store knows no index of {label_selector}"
        return self.held[kind].select(namespace, service, role)

    async def list_kinds(
        self, kinds: Iterable[Kind], namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]:
        """As `ApiClient.list_kinds`."""
        listings = [self.list_objects(kind, namespace, label_selector) for kind in kinds]
        return tuple(item for items in await asyncio.gather(*listings) for item in items)
