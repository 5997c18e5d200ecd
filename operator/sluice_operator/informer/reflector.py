"""Keeps the objects of one kind up to date: lists them, then watches, and lists again when the
watch cannot go on from where it was.

Knows nothing of what is done about a change.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from sluice_operator.clock import Clock
from sluice_operator.informer.blocked import Access, BlockedKinds, Verb
from sluice_operator.informer.store import Objects, Place, Version, number_of, place_of, version_of
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Request
from sluice_operator.kube.errors import (
    FORBIDDEN,
    ApiError,
    OperatorError,
    SilentError,
    UnavailableError,
)
from sluice_operator.kube.kinds import Kind
from sluice_operator.log import fields

GONE: Final = 410
RETRY: Final = Backoff(first_seconds=0.25, cap_seconds=5.0)
LAG_SECONDS: Final = 5.0
"""A watch may be behind a listing by this much before it counts as having missed something."""

logger = logging.getLogger(__name__)


class _CannotGoOnError(OperatorError):
    """A watch that goes on from where it was would miss something."""


OnChange = Callable[[Kind, Mapping[str, Any]], None]
"""Called with an object that has changed or gone, when the store already says so."""


class Streams(Protocol):
    """Requests with streamed responses."""

    def lines(self, request: Request) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True)
class Scope:
    """Which objects of a kind are followed."""

    namespace: str | None
    """None: all namespaces."""
    label_selector: str = ""
    is_needed: bool = True
    """Whether nothing can be reconciled without it."""


@dataclass(frozen=True)
class Source:
    """Where objects come from."""

    client: ApiClient
    streams: Streams
    clock: Clock
    draw: Callable[[], float]
    """Uniform in [0, 1): spreads attempts."""
    turns: asyncio.Semaphore
    """Listings at a time, as a page takes much more memory than what is kept of it."""
    blocked: BlockedKinds


class _Suspect(NamedTuple):
    """An object whose version here was not that of a listing that was asked for afterwards; None:
    not there."""

    known: int | None
    listed: int | None

    def is_so(self, now: int | None) -> bool:
        """Whether the watch, which has this version by now, has told nothing of the listing's."""
        if self.listed is None or now is None:
            return (self.listed is None) is not (now is None)
        # No version of one history becomes smaller: then a backup was restored.
        return now < self.listed or (now == self.known and now > self.listed)


class Reflector:
    """Follows one kind in one scope. `listed` is set once everything was listed."""

    def __init__(self, source: Source, scope: Scope, objects: Objects, on_change: OnChange) -> None:
        self.listed = asyncio.Event()
        self.is_needed = scope.is_needed
        self._source = source
        self._scope = scope
        self._objects = objects
        self._on_change = on_change
        self._failures = 0

    async def run(self) -> None:
        """Follows until it is cancelled, through outages of any length."""
        while True:
            try:
                version = await self._list()
            except OperatorError as error:
                await self._pause(error, "list")
            else:
                self._note_success("list")
                self.listed.set()
                await self._follow(version)

    async def verify(self) -> bool:
        """Compares what is known with the API server's metadata, and lists again if the watch has
        missed something; whether it had.

        Raises:
            RequestError: it could not be compared.
        """
        if not self.listed.is_set() or not (suspects := await self._differences()):
            return False
        await self._source.clock.sleep(LAG_SECONDS)
        now = {place: each.number for place, each in self._known()}
        late = [place for place, suspect in suspects.items() if suspect.is_so(now.get(place))]
        if late:
            logger.warning("watch had missed changes", extra=self._fields(objects=len(late)))
            await self._list()
        return bool(late)

    async def _list(self) -> str:
        """The version from which to watch."""
        seen: set[Place] = set()
        version = ""
        async with self._source.turns:
            mark = self._objects.mark()
            pages = self._source.client.pages(
                self._objects.kind, self._scope.namespace, self._scope.label_selector
            )
            async for items, listed_at in pages:
                version = listed_at
                for item in items:
                    seen.add(place_of(item))
                    if self._objects.put(item, listed_since=mark):
                        self._on_change(self._objects.kind, item)
        for item in self._objects.retain(self._scope.namespace, seen, number_of(version), mark):
            self._on_change(self._objects.kind, item)
        return version

    async def _follow(self, version: str) -> None:
        """Watches from `version`; returns when only a new listing helps."""
        while True:
            before = version
            try:
                async for line in self._source.streams.lines(self._watch(version)):
                    version = self._take(parse_event(line), version)
                    self._note_success("watch")
                if version == before:
                    raise OperatorError("the watch ended without an event")
            except OperatorError as error:
                await self._pause(error, "watch")
                if _needs_listing(error):
                    return

    def _take(self, event: dict[str, Any], version: str) -> str:
        """Keeps what `event`, which comes after `version`, says; returns its own version."""
        item = event["object"]
        if event["type"] == "ERROR":
            raise _CannotGoOnError(f"watch: {item}")
        number: str = item["metadata"]["resourceVersion"]
        if number_of(number) < number_of(version):
            logger.warning("versions go back", extra=self._fields(before=version, now=number))
            raise _CannotGoOnError(f"version {number} after {version}")
        if event["type"] == "BOOKMARK":
            return number
        if event["type"] == "DELETED":
            self._objects.remove(item)
        else:
            self._objects.put(item)
        self._on_change(self._objects.kind, item)
        return number

    async def _differences(self) -> dict[Place, _Suspect]:
        """Objects of which the API server has another version, or none."""
        known = {place: version.number for place, version in self._known()}
        listed: dict[Place, int] = {}
        pages = self._source.client.pages(
            self._objects.kind,
            self._scope.namespace,
            self._scope.label_selector,
            metadata_only=True,
        )
        async for items, _ in pages:
            listed |= {place_of(item): version_of(item).number for item in items}
        suspects = {
            place: _Suspect(known.get(place), listed.get(place)) for place in known | listed
        }
        return {place: each for place, each in suspects.items() if each.known != each.listed}

    def _known(self) -> Iterator[tuple[Place, Version]]:
        return self._objects.versions(self._scope.namespace)

    def _watch(self, version: str) -> Request:
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        if self._scope.label_selector:
            query["labelSelector"] = self._scope.label_selector
        return Request("GET", path(self._objects.kind, self._scope.namespace), query)

    async def _pause(self, error: OperatorError, verb: Verb) -> None:
        self._failures += 1
        # A refusal is told by those who need the kind, and once.
        is_loud = self._failures > 1 and not isinstance(error, ApiError)
        logger.log(
            logging.WARNING if is_loud else logging.DEBUG,
            "not followed",
            extra=self._fields(failures=self._failures, error=error),
        )
        # Watches end, and are too old, every now and then; listings are not.
        is_forbidden = isinstance(error, ApiError) and error.status == FORBIDDEN
        if self.is_needed and (verb == "list" or is_forbidden):
            self._source.blocked.failed(self._access(verb), error)
        draw = self._source.draw()
        await self._source.clock.sleep(RETRY.delay_seconds(self._failures, draw))

    def _note_success(self, verb: Verb) -> None:
        if verb == "watch":
            self._failures = 0
        self._source.blocked.succeeded(self._access(verb))

    def _access(self, verb: Verb) -> Access:
        return Access(verb, self._objects.kind, self._scope.namespace)

    def _fields(self, **more: object) -> dict[str, object]:
        where = self._scope.namespace or "all"
        return fields(kind=self._objects.kind.kind, namespace=where, **more)


def _needs_listing(error: OperatorError) -> bool:
    """Whether a watch that ended with `error` is of no more use. One that was silent may wait for
    versions that were given before a backup was restored."""
    if isinstance(error, ApiError):
        return error.status == GONE
    return isinstance(error, _CannotGoOnError | SilentError)


def parse_event(line: bytes) -> dict[str, Any]:
    """One event of a watch.

    Raises:
        UnavailableError: the line was cut off, and so the watch.
    """
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise UnavailableError("watch", f"a line that is no JSON: {line[:100]!r}") from error
    return event
