"""The informer: follows every kind that concerns a reconcile, and makes keys of what changes.

Knows which kinds concern a reconcile; not what it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sluice_contract import labels

from sluice_operator.informer.keys import RECONCILED, Key, keys_of
from sluice_operator.informer.reflector import Reflector, Scope, Source
from sluice_operator.informer.store import Objects
from sluice_operator.kube.kinds import POD, SERVICE_CHILDREN, Kind, Manifest

CHILDREN: Final = tuple(kind for kind in (*SERVICE_CHILDREN, POD) if kind not in RECONCILED)
LISTINGS_AT_ONCE: Final = 2


class Informer:
    """The objects of every kind, and a reflector for each kind and namespace. `namespaces`: none
    means all; `optional`: further kinds of children, which the cluster has."""

    def __init__(
        self,
        source: Source,
        namespaces: tuple[str, ...],
        optional: Iterable[Kind],
        add: Callable[[Key], None],
    ) -> None:
        kinds = (*RECONCILED, *CHILDREN, *optional)
        self.objects: Mapping[Kind, Objects] = {kind: Objects(kind) for kind in kinds}
        self._add = add
        self._reflectors = [
            Reflector(source, _scope(kind, namespace), self.objects[kind], self._changed)
            for kind in kinds
            for namespace in namespaces or (None,)
        ]

    async def run(self) -> None:
        """Follows every kind until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    async def synced(self) -> None:
        """Returns once everything there is was listed: before that, what is not in the store may
        be there all the same."""
        for reflector in self._reflectors:
            await reflector.listed.wait()

    async def verify(self) -> None:
        """Compares the store with the API server, in case a watch has missed something, and puts
        every reconciled object into the queue.

        Raises:
            RequestError: it could not be compared.
        """
        for reflector in self._reflectors:
            await reflector.verify()
        for kind in RECONCILED:
            for (namespace, name), _ in self.objects[kind].versions(None):
                self._add(Key(kind.kind, namespace, name))

    def written(self, kind: Kind, result: Manifest) -> None:
        """Puts what the API server has answered to a write of ours into the store, so that the
        next reconcile does not depend on how soon the watch tells of it. What no watch would tell
        of stays out."""
        metadata = result["metadata"]
        watched = kind in RECONCILED or labels.SERVICE in (metadata.get("labels") or {})
        if kind in self.objects and watched and "resourceVersion" in metadata:
            self.objects[kind].put(result)

    def _changed(self, kind: Kind, item: Mapping[str, Any]) -> None:
        for key in keys_of(kind, item):
            self._add(key)


def _scope(kind: Kind, namespace: str | None) -> Scope:
    return Scope(namespace, "" if kind in RECONCILED else labels.SERVICE)
