"""Keeps the objects of one kind up to date: lists them, then watches, and lists again when the
watch cannot go on from where it was.

Knows nothing of what is done about a change.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluice_operator.clock import Clock
from sluice_operator.informer.store import Objects, Place, place_of, version_of
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.errors import ApiError, OperatorError, UnavailableError
from sluice_operator.kube.kinds import Kind
from sluice_operator.kube.transport import Request
from sluice_operator.log import fields

GONE: Final = 410
RETRY: Final = Backoff(first_seconds=0.25, cap_seconds=5.0)
LAG_SECONDS: Final = 5.0
"""A watch may be behind a listing by this much before it counts as having missed something."""

logger = logging.getLogger(__name__)

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


class Reflector:
    """Follows one kind in one scope. `listed` is set once everything was listed."""

    def __init__(self, source: Source, scope: Scope, objects: Objects, on_change: OnChange) -> None:
        self.listed = asyncio.Event()
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
                self.listed.set()
                await self._follow(version)
            except OperatorError as error:
                await self._pause(error)

    async def verify(self) -> bool:
        """Compares what is known with the API server's metadata, and lists again if the watch has
        missed something; whether it had.

        Raises:
            RequestError: it could not be compared.
        """
        if not self.listed.is_set() or not (suspects := await self._differences()):
            return False
        await self._source.clock.sleep(LAG_SECONDS)
        known = dict(self._objects.versions(self._scope.namespace))
        late = [
            place
            for place, number in suspects.items()
            if (place in known) is (number is None)
            or (number is not None and known[place].number < number)
        ]
        if late:
            logger.warning("watch had missed changes", extra=self._fields(objects=len(late)))
            await self._list()
        return bool(late)

    async def _list(self) -> str:
        """The version from which to watch."""
        seen: set[Place] = set()
        version = ""
        async with self._source.turns:
            pages = self._source.client.pages(
                self._objects.kind, self._scope.namespace, self._scope.label_selector
            )
            async for items, listed_at in pages:
                version = listed_at
                for item in items:
                    seen.add(place_of(item))
                    if self._objects.put(item, listed=True):
                        self._on_change(self._objects.kind, item)
        for item in self._objects.retain(self._scope.namespace, seen, int(version)):
            self._on_change(self._objects.kind, item)
        return version

    async def _follow(self, version: str) -> None:
        """Watches from `version`; returns when only a new listing helps."""
        while True:
            before = version
            try:
                async for line in self._source.streams.lines(self._watch(version)):
                    event = _event(line)
                    if event["type"] == "ERROR":
                        if version == before or event["object"].get("code") != GONE:
                            await self._pause(OperatorError(f"watch: {event['object']}"))
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._failures = 0
                    self._take(event["type"], event["object"])
                if version == before:
                    await self._pause(OperatorError("the watch ended without an event"))
            except ApiError as error:
                await self._pause(error)
                if error.status == GONE:
                    return
            except OperatorError as error:
                await self._pause(error)

    def _take(self, event: str, item: Mapping[str, Any]) -> None:
        if event == "BOOKMARK":
            return
        if event == "DELETED":
            self._objects.remove(item)
        else:
            self._objects.put(item)
        self._on_change(self._objects.kind, item)

    async def _differences(self) -> dict[Place, int | None]:
        """Objects that are newer at the API server, with their versions; with None those that it
        does not have."""
        known = dict(self._objects.versions(self._scope.namespace))
        listed: dict[Place, int] = {}
        pages = self._source.client.pages(
            self._objects.kind,
            self._scope.namespace,
            self._scope.label_selector,
            metadata_only=True,
        )
        async for items, _ in pages:
            listed |= {place_of(item): version_of(item).number for item in items}
        newer: dict[Place, int | None] = {
            place: number
            for place, number in listed.items()
            if place not in known or known[place].number < number
        }
        return newer | dict.fromkeys(known.keys() - listed.keys())

    def _watch(self, version: str) -> Request:
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        if self._scope.label_selector:
            query["labelSelector"] = self._scope.label_selector
        return Request("GET", path(self._objects.kind, self._scope.namespace), query)

    async def _pause(self, error: OperatorError) -> None:
        self._failures += 1
        logger.log(
            logging.DEBUG if self._failures == 1 else logging.WARNING,
            "not followed",
            extra=self._fields(failures=self._failures, error=error),
        )
        draw = self._source.draw()
        await self._source.clock.sleep(RETRY.delay_seconds(self._failures, draw))

    def _fields(self, **more: object) -> dict[str, object]:
        where = self._scope.namespace or "all"
        return fields(kind=self._objects.kind.kind, namespace=where, **more)


def _event(line: bytes) -> dict[str, Any]:
    """One event of a watch; a line that was cut off is a watch that was."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise UnavailableError("watch", f"a line that is no JSON: {line[:100]!r}") from error
    return event
