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
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import POD, SERVICE_CHILDREN, Kind, Manifest

CHILDREN: Final = tuple(kind for kind in (*SERVICE_CHILDREN, POD) if kind not in RECONCILED)
LISTINGS_AT_ONCE: Final = 2


class Informer:
    """The objects of every kind, and a reflector for each kind and namespace. `namespaces`: none
    means all; `optional`: further kinds of children, which the cluster has and which nobody waits
    for."""

    def __init__(
        self,
        source: Source,
        namespaces: tuple[str, ...],
        optional: Iterable[Kind],
        add: Callable[[Key], None],
    ) -> None:
        kinds = dict.fromkeys((*RECONCILED, *CHILDREN), True) | dict.fromkeys(optional, False)
        self.objects: Mapping[Kind, Objects] = {kind: Objects(kind) for kind in kinds}
        self._add = add
        scopes = [
            (kind, _scope(kind, namespace, is_needed))
            for kind, is_needed in kinds.items()
            for namespace in namespaces or (None,)
        ]
        self._reflectors = [
            Reflector(source, scope, self.objects[kind], self._changed) for kind, scope in scopes
        ]

    async def run(self) -> None:
        """Follows every kind until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    async def synced(self) -> None:
        """Returns once everything there is of the kinds that are needed was listed: before that,
        what is not in the store may be there all the same."""
        for reflector in self._reflectors:
            if reflector.is_needed:
                await reflector.listed.wait()

    async def verify(self) -> None:
        """Compares the store with the API server, in case a watch has missed something, and puts
        every reconciled object into the queue, also where a kind could not be compared.

        Raises:
            OperatorError: a kind could not be; the first of these errors.
        """
        errors: list[OperatorError] = []
        for reflector in self._reflectors:
            try:
                await reflector.verify()
            except OperatorError as error:
                errors.append(error)
        for kind in RECONCILED:
            for (namespace, name), _ in self.objects[kind].versions(None):
                self._add(Key(kind.kind, namespace, name))
        if errors:
            raise errors[0]

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


def _scope(kind: Kind, namespace: str | None, is_needed: bool) -> Scope:
    return Scope(namespace, "" if kind in RECONCILED else labels.SERVICE, is_needed)
