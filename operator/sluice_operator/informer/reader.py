"""Reads for reconciles: from the store where it holds a kind, else from the API server.

Before a reconcile does something that cannot be undone, it reads the kinds in `DECISIVE` from the
API server, even if the store holds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sluice_contract.cluster import labels

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
    controller,
)

DECISIVE: Final = (INFERENCE_SERVICE, ENGINE_POOL, DEPLOYMENT, POD)
"""Kinds on which deleting and shrinking depend: who asks for how many engines, which engines exist,
and what they use."""


class Reader(Protocol):
    """Reads for observers. All raise `ApiError` or `UnavailableError`."""

    def certain(self) -> Reader:
        """A reader that reads the kinds in `DECISIVE` from the API server, not from memory."""
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
    """Reads kinds in `objects` from memory once they were listed. Other kinds, and those in
    `always_fetched`, are read through `client`. Fetched objects go to the store, so the next
    reconcile sees at least what this one has seen."""

    objects: Mapping[Kind, Objects]
    client: ApiClient
    always_fetched: frozenset[Kind] = frozenset()

    def certain(self) -> StoreReader:
        """A reader that fetches the kinds in `DECISIVE`; see `Reader.certain`."""
        return replace(self, always_fetched=frozenset(DECISIVE))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The object, as from `ApiClient.get`. Children are watched by a label that may be lost, so
        an object that the store lacks may still exist: it is always asked for."""
        if kind in RECONCILED and self._is_in_memory(kind, namespace):
            return self.objects[kind].get(namespace, name)
        item = await self.client.get(kind, namespace, name)
        if item is not None:
            self._remember(kind, item)
        return item

    async def list_objects(
        self, kind: Kind, namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]:
        """Like `ApiClient.list_objects`, for a selector of a service's label and, maybe, a
        role's."""
        if not self._is_in_memory(kind, namespace):
            items = await self.client.list_objects(kind, namespace, label_selector)
            for item in items:
                self._remember(kind, item)
            return items
        terms = dict(term.split("=", 1) for term in label_selector.split(","))
        service, role = terms.pop(labels.SERVICE), terms.pop(labels.ROLE, None)
        assert not terms, f"the store knows no index of {label_selector}"
        return self.objects[kind].select(namespace, service, role)

    async def list_kinds(
        self, kinds: Iterable[Kind], namespace: str, label_selector: str
    ) -> tuple[Manifest, ...]:
        """Like `ApiClient.list_kinds`."""
        listings = [self.list_objects(kind, namespace, label_selector) for kind in kinds]
        return tuple(item for items in await asyncio.gather(*listings) for item in items)

    def _is_in_memory(self, kind: Kind, namespace: str) -> bool:
        is_listed = kind in self.objects and self.objects[kind].was_listed(namespace)
        return is_listed and kind not in self.always_fetched

    def _remember(self, kind: Kind, item: Manifest) -> None:
        """Puts `item` into the store, if a watch follows it: otherwise no event would report its
        deletion."""
        is_followed = kind in RECONCILED or labels.SERVICE in item["metadata"].get("labels", {})
        if kind in self.objects and is_followed:
            self.objects[kind].put(item)


async def without_foreign(
    reader: Reader, items: tuple[Manifest, ...], uids: Set[str]
) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """The `items` without and with another living controller, as two tuples. Without: controlled by
    one of `uids`, by nobody, or by an InferenceService or EnginePool that is gone. Controllers of
    other kinds count as living: the garbage collector deletes what a dead one leaves."""
    foreign = await asyncio.gather(*(_is_foreign(reader, item, uids) for item in items))
    parted = tuple(zip(items, foreign, strict=True))
    return (
        tuple(item for item, is_foreign in parted if not is_foreign),
        tuple(item for item, is_foreign in parted if is_foreign),
    )


async def _is_foreign(reader: Reader, item: Manifest, uids: Set[str]) -> bool:
    owner = controller(item)
    if owner is None or owner["uid"] in uids:
        return False
    group = str(owner["apiVersion"]).rpartition("/")[0]
    kind = next((k for k in RECONCILED if (k.group, k.kind) == (group, owner["kind"])), None)
    if kind is None:
        return True
    live = await reader.get(kind, item["metadata"]["namespace"], owner["name"])
    return live is not None and live["metadata"]["uid"] == owner["uid"]
