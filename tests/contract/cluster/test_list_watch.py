"""One loop for what is followed: what it asks for after which answer, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import pytest
from sluice_contract.cluster.list_watch import (
    LONGEST_PAUSE_SECONDS,
    LONGEST_RETRY_AFTER_SECONDS,
    RESYNC_SECONDS,
    SHORTEST_WATCH_SECONDS,
    WATCH_SECONDS,
    ListWatch,
    RefusedError,
)


class AwayError(Exception):
    """The API server does not answer."""


FORBIDDEN = RefusedError(403, "Forbidden")
GONE = RefusedError(410, "Expired")
AWAY = AwayError()
LASTING = SHORTEST_WATCH_SECONDS
LONGEST_FORBIDDEN_SECONDS = 60.0
GONE_EVENT = json.dumps({"type": "ERROR", "object": {"code": 410}}).encode()
Line = bytes | Exception | float
"""A line, the error that ends a watch, or seconds of silence."""


def event(change: str, name: str, version: int) -> bytes:
    metadata = {"name": name, "resourceVersion": str(version)}
    return json.dumps({"type": change, "object": {"metadata": metadata}}).encode()


class Server:
    """Answers lists and watches in turn; after the last it is over."""

    def __init__(self, lists: list[Exception | str], watches: list[list[Line]]) -> None:
        self.lists = lists
        self.watches = watches
        self.now = 0.0
        self.asked: list[str] = []
        """Each request: `list`, or the version that a watch begins at."""
        self.pauses: list[float] = []
        self.taken: list[str] = []
        self.failures: list[int] = []
        self.is_open = False
        self.defect: Exception | None = None
        """Raised for each change."""

    async def followed(self) -> None:
        """Is followed until it is over, with the longest pauses that may be drawn."""
        times = (lambda: self.now, self.sleep, lambda: 1.0)
        await ListWatch(self, (AwayError,), *times, LONGEST_FORBIDDEN_SECONDS).run()

    async def list(self) -> str:
        self.asked.append("list")
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def lines(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        assert query["allowWatchBookmarks"] == query["watch"] == "true"
        assert 1 <= int(query["timeoutSeconds"]) <= WATCH_SECONDS
        self.asked.append(query["resourceVersion"])
        if not self.watches:
            raise asyncio.CancelledError
        self.is_open = True
        try:
            for line in self.watches.pop(0):
                if isinstance(line, Exception):
                    raise line
                if isinstance(line, float):
                    self.now += line
                else:
                    yield line
        finally:
            self.is_open = False

    def take(self, change: str, item: dict[str, Any]) -> None:
        if self.defect is not None:
            raise self.defect
        self.taken.append(f"{change} {item['metadata']['name']}")

    def failed(self, error: Exception, failures: int) -> None:
        self.failures.append(failures)

    async def sleep(self, seconds: float) -> None:
        assert not self.is_open, "one watch at a time"
        self.pauses.append(seconds)
        if len(self.pauses) > 30:
            raise asyncio.CancelledError


async def follow(lists: list[Exception | str], *watches: list[Line]) -> Server:
    """The server after it was followed."""
    server = Server(lists, list(watches))
    with pytest.raises(asyncio.CancelledError):
        await server.followed()
    return server


async def test_a_watch_goes_on_where_the_last_one_ended() -> None:
    changes = [event("ADDED", "a", 2), event("DELETED", "b", 3), event("BOOKMARK", "", 7)]
    server = await follow(["1"], [*changes], [event("MODIFIED", "a", 9)])
    assert server.asked == ["list", "1", "7", "9"]
    assert server.taken == ["ADDED a", "DELETED b", "MODIFIED a"]
    assert server.pauses == []


async def test_silence_is_no_failure_and_a_watch_that_ends_at_once_is_one() -> None:
    silent: list[Line] = [LASTING]
    server = await follow(["1"], silent, [], [], silent, [])
    assert server.asked == ["list"] + ["1"] * 6
    assert server.pauses == [0.2, 0.4, 0.2]


@pytest.mark.parametrize(
    "end",
    [
        AWAY,
        RefusedError(500, "broken"),
        json.dumps({"type": "ERROR", "object": {"code": 500}}).encode(),
        b'{"type": "ADDED", "obj',
        b"\xff\xfe",
        b"[]",
        b'{"type": "ADDED", "object": {"metadata": null}}',
        b'{"type": "ERROR", "object": null}',
    ],
    ids=lambda end: repr(end)[:30],
)
async def test_a_watch_that_breaks_goes_on_after_a_pause(end: Line) -> None:
    server = await follow(["1"], [event("ADDED", "a", 2), end], [])
    assert server.asked == ["list", "1", "2", "2"]
    assert server.pauses == [0.2, 0.4]


async def test_pauses_stay_short_while_each_watch_lasts_and_brings_something() -> None:
    watches: list[list[Line]] = [[event("ADDED", "a", 2 + n), LASTING, AWAY] for n in range(4)]
    server = await follow(["1"], *watches)
    assert server.pauses == [0.2] * 4
    assert server.failures == [1] * 4


async def test_a_slow_refusal_is_no_watch_that_lasts() -> None:
    slow: list[Line] = [10 * LASTING, AWAY]
    server = await follow(["1"], [event("ADDED", "a", 2), LASTING], slow, [*slow])
    assert server.pauses == [0.2, 0.4]


@pytest.mark.parametrize("end", [GONE, GONE_EVENT])
async def test_a_version_that_is_too_old_is_listed_again_at_once(end: Line) -> None:
    server = await follow(["1", "8"], [event("ADDED", "a", 2), LASTING, end])
    assert server.asked == ["list", "1", "list", "8"]
    assert server.pauses == server.failures == []


async def test_versions_that_are_always_too_old_are_asked_for_with_growing_pauses() -> None:
    server = await follow(["1"], *[cast("list[Line]", [GONE])] * 4)
    assert server.asked == ["list", "1"] * 5
    assert server.pauses == [0.2, 0.4, 0.8, 1.6]
    assert server.failures == [1, 2, 3, 4]


@pytest.mark.parametrize("end", [GONE, GONE_EVENT])
async def test_a_first_line_does_not_hide_that_versions_are_always_too_old(end: Line) -> None:
    watches: list[list[Line]] = [[event("BOOKMARK", "", 2), end] for _ in range(4)]
    server = await follow(["1"], *watches)
    assert server.asked == ["list", "1"] * 5
    assert server.pauses == [0.2, 0.4, 0.8, 1.6]


async def test_lists_that_are_always_too_old_are_asked_for_with_growing_pauses() -> None:
    server = await follow(["1", GONE], [event("ADDED", "a", 2), LASTING, GONE])
    assert server.asked[:4] == ["list", "1", "list", "list"]
    assert server.pauses[:3] == [0.2, 0.4, 0.8]
    assert server.failures == list(range(1, 32))


async def test_an_outage_after_which_the_version_is_too_old_ends_with_a_list_at_once() -> None:
    server = await follow(["1", "8"], [event("ADDED", "a", 2), LASTING], [AWAY], [AWAY], [GONE])
    assert server.asked == ["list", "1", "2", "2", "2", "list", "8"]
    assert server.pauses == [0.2, 0.4]


async def test_an_outage_has_growing_pauses_up_to_a_bound() -> None:
    server = await follow([AWAY])
    assert server.pauses[:3] == [0.2, 0.4, 0.8]
    assert server.pauses[-1] == LONGEST_PAUSE_SECONDS
    assert server.failures == list(range(1, 32))


async def test_a_missing_right_is_asked_for_less_and_less_often() -> None:
    server = await follow([FORBIDDEN])
    assert server.pauses[0] == 0.2, "an API server that starts forbids everything for a moment"
    assert server.pauses[-1] == LONGEST_FORBIDDEN_SECONDS


async def test_what_may_be_listed_and_not_watched_is_listed_again_and_again() -> None:
    server = await follow(["1"], *[cast("list[Line]", [FORBIDDEN])] * 20)
    assert server.asked == ["list", "1"] * 21
    assert server.pauses[-1] == LONGEST_FORBIDDEN_SECONDS


@pytest.mark.parametrize("end", [AWAY, RefusedError(500, "broken"), b'{"type": "ADDED", "obj'])
async def test_what_always_fails_from_one_version_is_listed_again(end: Line) -> None:
    failing: list[Line] = [event("ADDED", "a", 2), end]
    server = await follow(["1", "8"], failing, [end], [end], [event("ADDED", "b", 9)])
    assert server.asked == ["list", "1", "2", "2", "list", "8", "9"]


async def test_a_silent_watch_is_listed_again_after_some_minutes() -> None:
    silent: list[Line] = [float(WATCH_SECONDS)]
    server = await follow(["900", "5"], *[[*silent] for _ in range(4)])
    assert server.asked == ["list", "900", "900", "900", "list", "5", "5"]
    assert 2 * WATCH_SECONDS < 2 * RESYNC_SECONDS < 3 * WATCH_SECONDS
    assert server.pauses == []


async def test_a_watch_goes_on_where_a_list_that_was_due_is_refused() -> None:
    refused = RefusedError(500, "broken")
    server = await follow(["1", refused], [2 * RESYNC_SECONDS], [LASTING])
    assert server.asked == ["list", "1", "list", "1", "1"]
    assert server.pauses == [0.2]


@pytest.mark.parametrize("by", ["answer", "event", "away"])
@pytest.mark.parametrize("seconds", [7, 100_000])
async def test_a_pause_is_longer_by_what_the_api_server_asks_for(by: str, seconds: int) -> None:
    away = AwayError()
    away.retry_after_seconds = seconds  # type: ignore[attr-defined]
    status = {"code": 429, "details": {"retryAfterSeconds": seconds}}
    end: dict[str, Line] = {
        "answer": RefusedError(429, "Too many requests", seconds),
        "event": json.dumps({"type": "ERROR", "object": status}).encode(),
        "away": away,
    }
    server = await follow(["1"], [end[by]])
    assert server.pauses == [0.2 + min(seconds, LONGEST_RETRY_AFTER_SECONDS)]


async def test_failures_are_counted_by_status() -> None:
    server = await follow(["1"], [AWAY], [AWAY], [FORBIDDEN], [FORBIDDEN], [AWAY])
    assert server.failures == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("defect", [ValueError("x"), AWAY, FORBIDDEN])
async def test_an_error_in_taking_over_an_event_is_a_defect(defect: Exception) -> None:
    server = Server(["1"], [[event("ADDED", "a", 2)]])
    server.defect = defect
    with pytest.raises((ValueError, RuntimeError)):
        await server.followed()
    assert server.asked == ["list", "1"]
    assert server.failures == []


@pytest.mark.parametrize("defect", [KeyError("x"), ValueError("x")])
async def test_another_error_is_a_defect(defect: Exception) -> None:
    server = Server([defect], [])
    with pytest.raises(type(defect)):
        await server.followed()
