"""Follows one kind of object of the API server: lists it, then watches from there, for ever.

Transport, clock, chance and what is done with the objects are passed in. An outage takes nothing
away: the watch goes on from its last version when the API server is back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Protocol

SILENCE_SECONDS: Final = 70.0
"""Bookmarks come about once a minute: a transport ends a watch that is silent for longer."""
WATCH_SECONDS: Final = 300
"""The API server ends a watch after that long; the next one goes on from there."""
SHORTEST_WATCH_SECONDS: Final = 1.0
"""A watch that ends sooner, without an event, counts as refused."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 15.0
LONGEST_FORBIDDEN_SECONDS: Final = 60.0
"""Longest pause where a right is missing. The first ones are short, as API servers forbid
everything for a moment after their start."""


class RefusedError(Exception):
    """The API server refused; `status` is that of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Followed(Protocol):
    """One kind of object: how it is asked for, and what is done with it."""

    async def list(self) -> str:
        """Takes over all objects; returns their version."""
        ...

    def lines(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, until either side ends it."""
        ...

    def take(self, change: str, item: dict[str, Any]) -> None:
        """Takes over an object that was ADDED, MODIFIED or DELETED."""
        ...

    def failed(self, error: Exception, failures: int) -> None:
        """Reports the error; `failures`: how many there were in a row."""
        ...


class ListWatch:
    """Keeps `followed` up to date. Its requests raise RefusedError, or one of `away` while the API
    server does not answer. `draw` is uniform in [0, 1)."""

    def __init__(
        self,
        followed: Followed,
        away: tuple[type[Exception], ...],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        draw: Callable[[], float],
    ) -> None:
        self._followed = followed
        self._errors: tuple[type[Exception], ...] = (RefusedError, ValueError, *away)
        self._monotonic, self._sleep, self._draw = monotonic, sleep, draw
        self._version: str | None = None
        self._listed = ""
        self._failures = 0

    async def run(self) -> None:
        """Lists, then watches from there, until it is cancelled."""
        while True:
            try:
                if self._version is None:
                    self._version = self._listed = await self._followed.list()
                await self._watch(self._version)
            except self._errors as error:
                await self._pause(error)

    async def _watch(self, version: str) -> None:
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        began_at = self._monotonic()
        async with aclosing(self._followed.lines(query)) as lines:
            async for line in lines:
                change, item, self._version = _event(line)
                self._failures = 0
                if change != "BOOKMARK":
                    self._followed.take(change, item)
        if self._version != version or self._monotonic() - began_at >= SHORTEST_WATCH_SECONDS:
            self._failures = 0
        else:
            raise ValueError("the watch ended as soon as it had begun")

    async def _pause(self, error: Exception) -> None:
        self._failures += 1
        status = error.status if isinstance(error, RefusedError) else None
        may_list_at_once = self._failures == 1 or self._version != self._listed
        if status in (HTTPStatus.GONE, HTTPStatus.FORBIDDEN):
            self._version = None  # too old to watch from, or a list is all that is allowed
        if status == HTTPStatus.GONE and may_list_at_once:
            return
        self._followed.failed(error, self._failures)
        is_forbidden = status == HTTPStatus.FORBIDDEN
        longest = LONGEST_FORBIDDEN_SECONDS if is_forbidden else LONGEST_PAUSE_SECONDS
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 16), longest)
        await self._sleep(pause * (0.5 + self._draw() / 2))


def _event(line: bytes) -> tuple[str, dict[str, Any], str]:
    """Change, object and version of one line of a watch.

    Raises:
        RefusedError: it is an error of the API server.
        ValueError: it was cut off, or is no event.
    """
    event = json.loads(line)
    try:
        change, item = event["type"], event["object"]
        if change != "ERROR":
            return change, item, str(item["metadata"]["resourceVersion"])
        status, text = item.get("code", 500), f"{item.get('reason')}: {item.get('message')}"
    except (LookupError, TypeError, AttributeError):
        raise ValueError(f"no event of a watch: {line[:100]!r}") from None
    raise RefusedError(status, f"{status} {text}")
