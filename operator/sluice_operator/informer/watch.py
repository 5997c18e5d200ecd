"""The informer: stores what watches report, compares it with the API server, and turns changes into
keys. A watch begins at the version of a listing, so that nothing is missed between the two."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sluice_contract.cluster import labels

from sluice_operator.clock import Clock
from sluice_operator.informer.keys import RECONCILED, Key, differs_in_counts, keys_of
from sluice_operator.informer.store import Objects, Place, number_of, place_of, version_of
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
)
from sluice_operator.log import fields

CHILDREN: Final = tuple(kind for kind in (*SERVICE_CHILDREN, POD) if kind not in RECONCILED)
NEEDED: Final = (*RECONCILED, *CHILDREN)
"""Kinds without which nothing is reconciled."""
LISTINGS_AT_ONCE: Final = 2
"""Most listings at a time: a page takes much more memory than the parts of it that are kept."""
LAG_SECONDS: Final = 5.0
"""A watch may be behind a listing by this much before it counts as having missed something."""

logger = logging.getLogger(__name__)


class Scope(NamedTuple):
    """Objects of one kind that are listed and watched together; None: in all namespaces."""

    kind: Kind
    namespace: str | None


class _Discrepancy(NamedTuple):
    """An object whose stored version differs from that of a later listing. None: absent."""

    stored: int | None
    listed: int | None

    def persists(self, now: int | None) -> bool:
        """Whether the watch, now at this version, still has not delivered the state of the
        listing."""
        if self.listed is None or now is None:
            return (self.listed is None) is not (now is None)
        # Versions only grow; a smaller one means that a backup was restored.
        return now < self.listed or (now == self.stored and now > self.listed)


class Informer:
    """The objects of every kind. `namespaces`: none means all. `optional`: kinds of children that
    only some clusters have; reconciles do not wait for these."""

    def __init__(
        self,
        client: ApiClient,
        clock: Clock,
        namespaces: tuple[str, ...],
        optional: Iterable[Kind],
        add: Callable[[Key], None],
    ) -> None:
        self.kinds = (*NEEDED, *optional)
        self.objects: Mapping[Kind, Objects] = {kind: Objects(kind) for kind in self.kinds}
        self.has_missed = asyncio.Event()
        """Set if a watch has missed something."""
        self._client = client
        self._clock = clock
        self._add = add
        self._written: set[tuple[Kind, Place]] = set()
        """Objects that we wrote and that no watch or listing has confirmed: the API server's answer
        may contain changes by others."""
        self._echoes: dict[tuple[Kind, Place], int] = {}
        """Version of an object after our write of its status, if that write concerns no reconcile
        of the object itself."""
        self._turns = asyncio.Semaphore(LISTINGS_AT_ONCE)
        self._scopes = {
            path(kind, name): Scope(kind, name)
            for kind in self.kinds
            for name in namespaces or (None,)
        }
        self._listed_at: dict[Scope, str] = {}
        """Versions of listings at which no watch has begun yet."""

    def take(self, kind: Kind, change: str, item: Mapping[str, Any]) -> None:
        """Stores what a watch reports."""
        self._written.discard((kind, place_of(item)))
        if change == "DELETED":
            self._echoes.pop((kind, place_of(item)), None)
            self.objects[kind].remove(item)
            self._changed(kind, item)
            return
        before = self.objects[kind].get(*place_of(item)) if kind == DEPLOYMENT else None
        is_news = self.objects[kind].put(item)
        if self._is_echo(kind, item):
            self._changed(kind, item, is_echo=True)
            return
        # An answer to our write may contain changes by others, which still have to be queued.
        # Nobody else changes ConfigMaps and revisions.
        if is_news or kind not in (CONFIG_MAP, CONTROLLER_REVISION):
            self._changed(kind, item, before)

    def written(self, kind: Kind, result: Manifest) -> None:
        """Stores the API server's answer to our own write, so that the next reconcile does not wait
        for the watch. Objects that no watch would report are not stored."""
        metadata = result["metadata"]
        watched = kind in RECONCILED or labels.SERVICE in (metadata.get("labels") or {})
        if kind in self.objects and watched and "resourceVersion" in metadata:
            place = place_of(result)
            is_compared = kind == DEPLOYMENT or kind in RECONCILED
            before = self.objects[kind].get(*place) if is_compared else None
            self.objects[kind].put(result)
            self._written.add((kind, place))
            if kind in RECONCILED:
                self._note_echo(kind, before, result)
            elif before is not None:
                self._changed(kind, result, before)

    def _note_echo(self, kind: Kind, before: Manifest | None, result: Manifest) -> None:
        entry = (kind, place_of(result))
        self._echoes.pop(entry, None)
        if differs_in_counts(kind, before, result):
            self._echoes[entry] = version_of(result).number

    def _is_echo(self, kind: Kind, item: Mapping[str, Any]) -> bool:
        """Whether a watch reports a write of ours that concerns no reconcile of the same object.
        Versions older than the write do not count, as they may be others'."""
        entry = (kind, place_of(item))
        written = self._echoes.get(entry)
        if written is None or version_of(item).number < written:
            return False
        del self._echoes[entry]
        return version_of(item).number == written

    def add(self, key: Key) -> None:
        """Queues `key` if all kinds that concern it are listed. Before that, a missing object may
        still exist."""
        if self.is_synced(key.namespace):
            self._add(key)

    def is_synced(self, namespace: str) -> bool:
        """Whether everything there is of the needed kinds was listed in a namespace."""
        return all(self.objects[kind].was_listed(namespace) for kind in NEEDED)

    def services(self) -> Iterator[Manifest]:
        """Every InferenceService that is known."""
        objects = self.objects[INFERENCE_SERVICE]
        for place, _ in tuple(objects.versions(None)):
            if (service := objects.get(*place)) is not None:
                yield service

    async def list_all(self, namespaces: Iterable[str | None]) -> None:
        """Lists what was not listed yet in `namespaces`.

        Raises:
            OperatorError: a needed kind could not be listed; the first error.
        """
        scopes = [
            followed for followed in self._scopes.values() if followed.namespace in namespaces
        ]
        unlisted = [scope for scope in scopes if not self._was_listed(scope)]
        errors = await asyncio.gather(*map(self._error_of_list, unlisted))
        for scope, error in zip(unlisted, errors, strict=True):
            if error is not None and scope.kind in NEEDED:
                raise error
        for namespace in {scope.namespace for scope in unlisted}:
            self._add_all(namespace)

    async def version_to_watch(self, of: str) -> str | None:
        """The version at which a watch of the path `of` should begin: that of the last listing if
        no watch has begun there, else of a new listing. None: the informer does not follow the
        path.

        Raises:
            OperatorError: it could not be listed.
        """
        if (scope := self._scopes.get(of)) is None:
            return None
        if scope not in self._listed_at:
            await self._list(scope)
        return self._listed_at.pop(scope)

    async def verify(self) -> None:
        """Compares the store with the API server, in case a watch has missed something. Queues
        every reconciled object, even if a kind could not be compared.

        Raises:
            OperatorError: a kind could not be compared; the first error.
        """
        errors: list[OperatorError] = []
        for scope in self._scopes.values():
            try:
                if await self._verify(scope):
                    self.has_missed.set()
            except OperatorError as error:
                errors.append(error)
        self._add_all(None)
        if errors:
            raise errors[0]

    async def _error_of_list(self, scope: Scope) -> OperatorError | None:
        try:
            await self._list(scope)
        except OperatorError as error:
            return error
        return None

    async def _list(self, scope: Scope) -> None:
        objects, seen, version = self.objects[scope.kind], set[Place](), ""
        async with self._turns:
            mark = objects.mark()
            async for items, listed_at in self._pages(scope):
                version = listed_at
                for item in items:
                    place = place_of(item)
                    seen.add(place)
                    is_news = objects.put(item, listed_since=mark)
                    if is_news or (scope.kind, place) in self._written:
                        self._written.discard((scope.kind, place))
                        self._changed(scope.kind, item)
        for item in objects.retain(scope.namespace, seen, number_of(version), mark):
            self._changed(scope.kind, item)
        self._listed_at[scope] = version

    async def _verify(self, scope: Scope) -> bool:
        """Lists a scope again if the watch and the listing differ; returns whether they
        differed."""
        if not self._was_listed(scope) or not (discrepancies := await self._differences(scope)):
            return False
        await self._clock.sleep(LAG_SECONDS)
        now = self._stored_versions(scope)
        late = [
            place
            for place, discrepancy in discrepancies.items()
            if discrepancy.persists(now.get(place))
        ]
        if late:
            logger.info("listed again", extra=_fields(scope, objects=len(late)))
            await self._list(scope)
        return bool(late)

    async def _differences(self, scope: Scope) -> dict[Place, _Discrepancy]:
        """Objects that the API server has in another version, or not at all."""
        stored, listed = self._stored_versions(scope), dict[Place, int]()
        async for items, _ in self._pages(scope, metadata_only=True):
            listed |= {place_of(item): version_of(item).number for item in items}
        discrepancies = {
            place: _Discrepancy(stored.get(place), listed.get(place)) for place in stored | listed
        }
        return {
            place: discrepancy
            for place, discrepancy in discrepancies.items()
            if discrepancy.stored != discrepancy.listed
        }

    def _pages(
        self, scope: Scope, *, metadata_only: bool = False
    ) -> AsyncIterator[tuple[list[Manifest], str]]:
        selector = selector_of(scope.kind)
        return self._client.pages(
            scope.kind, scope.namespace, selector, metadata_only=metadata_only
        )

    def _was_listed(self, scope: Scope) -> bool:
        return self.objects[scope.kind].was_listed(scope.namespace or "")

    def _stored_versions(self, scope: Scope) -> dict[Place, int]:
        versions = self.objects[scope.kind].versions(scope.namespace)
        return {place: version.number for place, version in versions}

    def _changed(
        self,
        kind: Kind,
        item: Mapping[str, Any],
        before: Mapping[str, Any] | None = None,
        *,
        is_echo: bool = False,
    ) -> None:
        """Queues the keys that a change concerns. An echo concerns neither the object itself nor,
        for a service, its pools."""
        pools = self.objects[ENGINE_POOL]
        for key in keys_of(kind, item, before):
            if is_echo and (kind == INFERENCE_SERVICE or key.kind == kind.kind):
                continue
            if kind != INFERENCE_SERVICE or key.kind == kind.kind or pools.has(key[1:]):
                self.add(key)

    def _add_all(self, namespace: str | None) -> None:
        for kind in RECONCILED:
            for (place, name), _ in self.objects[kind].versions(namespace):
                self.add(Key(kind.kind, place, name))


def selector_of(kind: Kind) -> str:
    """Label selector of a kind's objects that concern a reconcile: children have a service's
    label."""
    return "" if kind in RECONCILED else labels.SERVICE


def _fields(scope: Scope, **more: object) -> dict[str, object]:
    return fields(kind=scope.kind.kind, namespace=scope.namespace or "all", **more)
