"""Follows one kind of object of the API server: lists the objects, then watches them, for ever.

Transport, clock, random numbers and the objects' handler are passed in. A failure loses nothing:
the watch continues from its last version or, after some failures, from a new list.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Protocol

SILENCE_SECONDS: Final = 70.0
"""Silence after which a transport ends a watch; bookmarks come about once a minute."""
WATCH_SECONDS: Final = 300
"""Seconds after which the API server ends a watch; the next one continues from there."""
SHORTEST_WATCH_SECONDS: Final = 1.0
"""A watch that ends sooner, without an event, counts as refused."""
RESYNC_SECONDS: Final = 400.0
"""Shortest time between lists; the longest is twice that. A new list is needed even without
failures: after a restored backup, a watch from a version that the API server has not reached is
silent."""
FAILURES_BEFORE_LIST: Final = 3
"""Failures in a row after which a new list is made: the version, or the event after it, may be the
cause."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 15.0
LONGEST_RETRY_AFTER_SECONDS: Final = 60.0
"""Longest pause that an API server may ask for, in addition to our own."""


class RefusedError(Exception):
    """The API server refused; `status` is that of HTTP."""

    def __init__(self, status: int, text: str, retry_after_seconds: float | None = None) -> None:
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        super().__init__(text)


class BrokenWatchError(Exception):
    """A watch was cut off, sent something other than an event, or ended right after its start."""


class Followed(Protocol):
    """One kind of object: how to request it, and what to do with it."""

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
        """Reports the error. `failures`: failures in a row with the same status, or all without
        one, since the last watch that lasted."""
        ...


class ListWatch:
    """Keeps `followed` up to date. Its requests raise RefusedError if the API server refuses, or
    one of the `away` exceptions if it does not answer; the exception may have
    `retry_after_seconds`. `draw`: uniform in [0, 1). `longest_forbidden_seconds`: longest pause
    after a 403. The first pauses are short, because API servers forbid everything for a moment
    after their start."""

    def __init__(
        self,
        followed: Followed,
        away: tuple[type[Exception], ...],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]],
        draw: Callable[[], float],
        longest_forbidden_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._followed = followed
        self._errors: tuple[type[Exception], ...] = (RefusedError, BrokenWatchError, *away)
        self._monotonic, self._sleep, self._draw = monotonic, sleep, draw
        self._longest_forbidden_seconds = longest_forbidden_seconds
        self._version: str | None = None
        self._list_at = 0.0
        self._may_list_at_once = False
        self._failures = self._failures_alike = 0
        self._last_status: int | None = None

    async def run(self) -> None:
        """Lists, then watches from there, until it is cancelled."""
        while True:
            try:
                await self._watch(await self._listed())
            except self._errors as error:
                await self._pause(error)

    async def _listed(self) -> str:
        """The version to watch from, from a new list if one is due. A due list that fails is not
        repeated at once."""
        now = self._monotonic()
        if self._version is None or now >= self._list_at:
            self._list_at = now + RESYNC_SECONDS * (1 + self._draw())
            self._version = await self._followed.list()
        return self._version

    async def _watch(self, version: str) -> None:
        began_at = self._monotonic()
        has_ended = False
        try:
            await self._take_all(version, self._list_at - began_at)
            has_ended = True
        finally:
            has_lasted = self._monotonic() - began_at >= SHORTEST_WATCH_SECONDS
            has_changed = self._version != version
            if has_lasted and (has_ended or has_changed):
                self._failures = self._failures_alike = 0
                self._may_list_at_once = True
        if not has_lasted and not has_changed:
            raise BrokenWatchError("the watch ended as soon as it had begun")

    async def _take_all(self, version: str, seconds_to_list: float) -> None:
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, min(WATCH_SECONDS, math.ceil(seconds_to_list) + 1))),
        }
        async with aclosing(self._followed.lines(query)) as lines:
            async for line in lines:
                change, item, next_version = _event(line)
                if change != "BOOKMARK":
                    self._take(change, item)
                self._version = next_version

    def _take(self, change: str, item: dict[str, Any]) -> None:
        try:
            self._followed.take(change, item)
        except self._errors as error:  # no request was made here, so this is a defect of ours
            raise RuntimeError(f"an event of a watch was not taken over: {error!r}") from error

    async def _pause(self, error: Exception) -> None:
        status = error.status if isinstance(error, RefusedError) else None
        if status == HTTPStatus.GONE and self._may_list_at_once:
            self._version, self._may_list_at_once = None, False
            return
        self._failures += 1
        self._failures_alike = self._failures_alike + 1 if status == self._last_status else 1
        self._last_status = status
        is_forbidden = status == HTTPStatus.FORBIDDEN  # a list may still be allowed
        is_list_due = self._failures % FAILURES_BEFORE_LIST == 0
        if is_forbidden or is_list_due or status == HTTPStatus.GONE:
            self._version = None
        self._followed.failed(error, self._failures_alike)
        longest = self._longest_forbidden_seconds if is_forbidden else LONGEST_PAUSE_SECONDS
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 16), longest)
        retry_after: float = getattr(error, "retry_after_seconds", None) or 0.0
        extra = min(retry_after, LONGEST_RETRY_AFTER_SECONDS)
        await self._sleep(extra + pause * (0.5 + self._draw() / 2))


def _event(line: bytes) -> tuple[str, dict[str, Any], str]:
    """Change, object and version of one line of a watch.

    Raises:
        RefusedError: the line is an error of the API server.
        BrokenWatchError: the line was cut off, or is not an event.
    """
    try:
        event = json.loads(line)
        change, item = event["type"], event["object"]
        if change != "ERROR":
            return change, item, str(item["metadata"]["resourceVersion"])
        status, text = item.get("code", 500), f"{item.get('reason')}: {item.get('message')}"
        retry_after = float((item.get("details") or {}).get("retryAfterSeconds") or 0)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BrokenWatchError(f"no event of a watch: {line[:100]!r}") from None
    raise RefusedError(status, f"{status} {text}", retry_after)
