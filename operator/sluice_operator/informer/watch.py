"""The informer: keeps in the store what watches tell, compares it with what the API server has, and
makes keys of what changes.

A watch tells what there is and what is new, but neither when that was all, nor what has gone while
it was away. So the metadata of everything is listed whenever watches begin. Knows which kinds
concern a reconcile; neither what it does nor how watches are held.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sluice_contract import labels

from sluice_operator.clock import Clock
from sluice_operator.informer.keys import RECONCILED, Key, keys_of
from sluice_operator.informer.store import Objects, Place, number_of, place_of, version_of
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD, SERVICE_CHILDREN, Kind, Manifest
from sluice_operator.log import fields

CHILDREN: Final = tuple(kind for kind in (*SERVICE_CHILDREN, POD) if kind not in RECONCILED)
NEEDED: Final = (*RECONCILED, *CHILDREN)
"""Without one of these, nothing is reconciled."""
LISTINGS_AT_ONCE: Final = 2
"""A page takes much more memory than what is kept of it."""
RETRY: Final = Backoff(first_seconds=0.25, cap_seconds=5.0)
LAG_SECONDS: Final = 5.0
"""A watch may be behind a listing by this much before it counts as having missed something."""
POLL_SECONDS: Final = 0.1

logger = logging.getLogger(__name__)


class Scope(NamedTuple):
    """Objects of one kind that are listed and watched together; None: in all namespaces."""

    kind: Kind
    namespace: str | None


class _Listing(NamedTuple):
    """What the API server had, and at which version, since the mark."""

    versions: Mapping[Place, int]
    version: int
    mark: int


class _Suspect(NamedTuple):
    """An object whose version here was not that of a listing that was asked for afterwards; None:
    not there."""

    known: int | None
    listed: int | None

    def is_so(self, now: int | None) -> bool:
        """Whether the watch, which has this version now, has told nothing of the listing's."""
        if self.listed is None or now is None:
            return (self.listed is None) is not (now is None)
        # No version of one history becomes smaller: then a backup was restored.
        return now < self.listed or (now == self.known and now > self.listed)


class Informer:
    """The objects of every kind. `namespaces`: none means all; `optional`: further kinds of
    children, which the cluster has and which nobody waits for; `draw`: uniform in [0, 1)."""

    def __init__(
        self,
        client: ApiClient,
        clock: Clock,
        namespaces: tuple[str, ...],
        optional: Iterable[Kind],
        add: Callable[[Key], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.kinds = (*NEEDED, *optional)
        self.objects: Mapping[Kind, Objects] = {kind: Objects(kind) for kind in self.kinds}
        self.has_missed = asyncio.Event()
        """Set where a watch has not told what it should have."""
        self._client = client
        self._clock = clock
        self._add = add
        self._draw = draw
        self._turns = asyncio.Semaphore(LISTINGS_AT_ONCE)
        scopes = (Scope(kind, name) for kind in self.kinds for name in namespaces or (None,))
        self._is_stale = {scope: asyncio.Event() for scope in scopes}

    def take(self, kind: Kind, change: str | None, item: Mapping[str, Any]) -> None:
        """Keeps what a watch tells. `change` None: that the object was listed anew, in which case
        others may have gone."""
        if change == "DELETED":
            self.objects[kind].remove(item)
        else:
            self.objects[kind].put(item)
        if change is None:
            self._mark_stale(kind, item["metadata"]["namespace"])
        self._changed(kind, item)

    def written(self, kind: Kind, result: Manifest) -> None:
        """Puts what the API server has answered to a write of ours into the store, so that the
        next reconcile does not depend on how soon the watch tells of it. What no watch would tell
        of stays out."""
        metadata = result["metadata"]
        watched = kind in RECONCILED or labels.SERVICE in (metadata.get("labels") or {})
        if kind in self.objects and watched and "resourceVersion" in metadata:
            self.objects[kind].put(result)

    def add(self, key: Key) -> None:
        """Queues `key` if everything that concerns it is known: before that, what is not in the
        store may be there all the same."""
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

    def watched_anew(self, namespaces: Iterable[str | None]) -> None:
        """Watches have begun in `namespaces`: what has gone before will not be told."""
        for scope, is_stale in self._is_stale.items():
            if scope.namespace in namespaces:
                is_stale.set()

    async def run(self) -> None:
        """Finds out what is there, and what has gone, whenever watches begin."""
        async with asyncio.TaskGroup() as group:
            for scope in self._is_stale:
                group.create_task(self._keep(scope))

    async def verify(self) -> None:
        """Compares the store with the API server, in case a watch has missed something, and puts
        every reconciled object into the queue, also where a kind could not be compared.

        Raises:
            OperatorError: a kind could not be; the first of these errors.
        """
        errors: list[OperatorError] = []
        for scope in self._is_stale:
            try:
                await self._verify(scope)
            except OperatorError as error:
                errors.append(error)
        self._add_all(None)
        if errors:
            raise errors[0]

    async def _keep(self, scope: Scope) -> None:
        is_stale, failures = self._is_stale[scope], 0
        while True:
            await is_stale.wait()
            try:
                listing = await self._list(scope)
                has_come = await self._has_come(scope, listing)
            except OperatorError as error:
                has_come = False
                logger.debug("not listed", extra=_fields(scope, error=error))
            if has_come:
                failures = 0
                is_stale.clear()
                self._drop_others(scope, listing)
                self._add_all(scope.namespace)
            else:
                failures += 1
                await self._clock.sleep(RETRY.delay_seconds(failures, self._draw()))

    async def _has_come(self, scope: Scope, listing: _Listing) -> bool:
        """Waits until the watch has told of everything listed; whether it does."""
        missing, waited_seconds = len(listing.versions), 0.0
        while left := len(listing.versions.keys() - self._known(scope).keys()):
            waited_seconds = 0.0 if left < missing else waited_seconds + POLL_SECONDS
            if waited_seconds >= LAG_SECONDS:
                return False
            missing = left
            await self._clock.sleep(POLL_SECONDS)
        return True

    async def _verify(self, scope: Scope) -> None:
        if self._is_stale[scope].is_set() or not self.objects[scope.kind].was_listed(
            scope.namespace or ""
        ):
            return
        listing = await self._list(scope)
        if not (suspects := self._differences(scope, listing)):
            return
        await self._clock.sleep(LAG_SECONDS)
        now = self._known(scope)
        late = [place for place, suspect in suspects.items() if suspect.is_so(now.get(place))]
        if not late:
            return
        logger.warning("watch had missed changes", extra=_fields(scope, objects=len(late)))
        self._drop_others(scope, listing)
        for place in late:
            item = await self._client.get(scope.kind, *place)
            if item is not None and self.objects[scope.kind].put(item, listed_since=listing.mark):
                self._changed(scope.kind, item)
        self.has_missed.set()

    async def _list(self, scope: Scope) -> _Listing:
        mark, version = self.objects[scope.kind].mark(), ""
        found: dict[Place, int] = {}
        selector = selector_of(scope.kind)
        pages = self._client.pages(scope.kind, scope.namespace, selector, metadata_only=True)
        async with self._turns:
            async for items, listed_at in pages:
                version = listed_at
                found |= {place_of(item): version_of(item).number for item in items}
        return _Listing(found, number_of(version), mark)

    def _drop_others(self, scope: Scope, listing: _Listing) -> None:
        objects, seen = self.objects[scope.kind], set(listing.versions)
        for item in objects.retain(scope.namespace, seen, listing.version, listing.mark):
            self._changed(scope.kind, item)

    def _differences(self, scope: Scope, listing: _Listing) -> dict[Place, _Suspect]:
        """Objects of which the API server has another version, or none."""
        known, listed = self._known(scope), listing.versions
        suspects = {
            place: _Suspect(known.get(place), listed.get(place)) for place in {**known, **listed}
        }
        return {place: each for place, each in suspects.items() if each.known != each.listed}

    def _known(self, scope: Scope) -> dict[Place, int]:
        versions = self.objects[scope.kind].versions(scope.namespace)
        return {place: version.number for place, version in versions}

    def _changed(self, kind: Kind, item: Mapping[str, Any]) -> None:
        for key in keys_of(kind, item):
            self.add(key)

    def _add_all(self, namespace: str | None) -> None:
        for kind in RECONCILED:
            for (place, name), _ in self.objects[kind].versions(namespace):
                self.add(Key(kind.kind, place, name))

    def _mark_stale(self, kind: Kind, namespace: str) -> None:
        for name in (None, namespace):
            if (is_stale := self._is_stale.get(Scope(kind, name))) is not None:
                is_stale.set()


def selector_of(kind: Kind) -> str:
    """Which objects of a kind concern a reconcile: of children, those with a service's label."""
    return "" if kind in RECONCILED else labels.SERVICE


def _fields(scope: Scope, **more: object) -> dict[str, object]:
    return fields(kind=scope.kind.kind, namespace=scope.namespace or "all", **more)
