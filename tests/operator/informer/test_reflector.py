"""One kind is followed through everything a watch can do: late, cut, too old, silent, wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from sluice_operator.informer.blocked import PATIENCE_SECONDS, BlockedKinds, Verb
from sluice_operator.informer.reflector import LAG_SECONDS, RETRY, Reflector, Scope, Source
from sluice_operator.informer.store import Objects
from sluice_operator.kube.client import METADATA_ONLY, ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError, SilentError, UnavailableError
from sluice_operator.kube.kinds import SERVICE, Kind, Manifest

from tests.operator.virtual_time import FakeClock

Turn = Callable[[], AsyncIterator[bytes]]
TOO_OLD = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
BROKEN = {"type": "ERROR", "object": {"kind": "Status", "code": 500}}


class DoneError(Exception):
    """Ends a watch that would go on for ever."""


def service(name: str, version: int) -> Manifest:
    metadata = {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"version": version}}


def event(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


class Server:
    """Has `items` at `version`; each watch is the next of `watches`: events, and at last an error
    or nothing, which is how a server ends a watch."""

    def __init__(self, *items: Manifest, version: int = 10) -> None:
        self.items = list(items)
        self.version = version
        self.watches: list[list[Any]] = []
        self.list_errors: list[Response] = []
        self.lists = 0
        self.since: list[str] = []

    async def send(self, request: Request) -> Response:
        assert request.query["labelSelector"] == "l"
        self.lists += request.accept != METADATA_ONLY
        if self.list_errors:
            return self.list_errors.pop(0)
        first = "continue" not in request.query
        half = (len(self.items) + 1) // 2
        items = self.items[:half] if first else self.items[half:]
        metadata = {"resourceVersion": str(self.version), "continue": "more" if first else ""}
        return Response(200, {"metadata": metadata, "items": items})

    async def lines(self, request: Request) -> AsyncIterator[bytes]:
        assert request.query["labelSelector"] == "l"
        self.since.append(request.query["resourceVersion"])
        if not self.watches:
            raise DoneError
        for each in self.watches.pop(0):
            if isinstance(each, Exception):
                raise each
            if callable(each):
                each()
            elif isinstance(each, bytes):
                yield each
            else:
                yield json.dumps(each).encode() + b"\n"


class Followed:
    """A reflector of `server`, what it has told, and the time it has waited."""

    def __init__(self, server: Server, is_needed: bool = True) -> None:
        self.told: list[str] = []
        self.clock = FakeClock()
        self.objects = Objects(SERVICE)
        client = ApiClient(server, lambda verb, plural: None)
        self.blocked = BlockedKinds(self.clock)
        turns = asyncio.Semaphore(1)
        source = Source(client, server, self.clock, lambda: 0.0, turns, self.blocked)
        self.reflector = Reflector(source, Scope(None, "l", is_needed), self.objects, self.changed)

    def changed(self, kind: Kind, item: Mapping[str, Any]) -> None:
        self.told.append(item["metadata"]["name"])

    async def to_its_end(self) -> dict[str, int]:
        with pytest.raises(DoneError):
            await self.reflector.run()
        return self.state()

    def state(self) -> dict[str, int]:
        return {name: version.number for (_, name), version in self.objects.versions(None)}


async def test_what_is_there_is_listed_page_by_page_and_then_watched() -> None:
    server = Server(service("a", 1), service("b", 2), service("c", 3))
    server.watches = [
        [
            event("MODIFIED", service("a", 11)),
            event("DELETED", service("b", 12)),
            event("ADDED", service("d", 13)),
        ]
    ]
    followed = Followed(server)
    assert await followed.to_its_end() == {"a": 11, "c": 3, "d": 13}
    assert followed.told == ["a", "b", "c", "a", "b", "d"]
    assert followed.reflector.listed.is_set()
    assert server.lists == 2


async def test_a_watch_that_ends_goes_on_from_its_last_event_or_bookmark() -> None:
    server = Server(service("a", 1))
    server.watches = [
        [event("MODIFIED", service("a", 11))],
        [event("BOOKMARK", {"metadata": {"resourceVersion": "20"}})],
        [UnavailableError("GET", "cut off")],
        [b'{"type": "MODI'],
        [],
    ]
    followed = Followed(server)
    await followed.to_its_end()
    assert server.since == ["10", "11", "20", "20", "20", "20"]
    assert server.lists == 2, "listed once, in two pages"


@pytest.mark.parametrize("watch", [[], [BROKEN], [TOO_OLD]], ids=["ends", "500", "410"])
async def test_a_server_whose_watches_bring_nothing_is_given_time(watch: list[Any]) -> None:
    server = Server(service("a", 1))
    server.watches = [watch] * 20
    followed = Followed(server)
    await followed.to_its_end()
    assert followed.clock.monotonic() >= 20 * RETRY.delay_seconds(1, 0.0)


@pytest.mark.parametrize(
    "end",
    [
        TOO_OLD,
        BROKEN,
        ApiError("GET", 410, "Expired", ""),
        SilentError("GET", "nothing for 70 seconds"),
        event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
    ],
    ids=["410", "500", "HTTP 410", "silent", "versions go back"],
)
async def test_a_watch_that_cannot_go_on_is_started_from_a_new_listing(end: Any) -> None:
    server = Server(service("a", 1), service("b", 2))

    def meanwhile() -> None:
        server.items, server.version = [service("b", 30), service("c", 31)], 40

    server.watches = [[meanwhile, end]]
    followed = Followed(server)
    assert await followed.to_its_end() == {"b": 30, "c": 31}
    assert followed.told == ["a", "b", "b", "c", "a"], "what has gone meanwhile is told, too"
    assert server.since == ["10", "40"]


async def test_an_event_from_before_the_listing_changes_nothing() -> None:
    server = Server(service("a", 9))
    server.watches = [[event("MODIFIED", service("a", 8)), event("DELETED", service("a", 7))]]
    assert await Followed(server).to_its_end() == {"a": 9}


async def test_refusals_and_outages_are_waited_out_ever_more_patiently() -> None:
    server = Server(service("a", 1))
    server.list_errors = [Response(503, {}), Response(403, {}), Response(429, {})]
    server.watches = [[ApiError("GET", 403, "Forbidden", "")], [UnavailableError("GET", "x")]]
    followed = Followed(server)
    assert await followed.to_its_end() == {"a": 1}
    assert followed.clock.elapsed_seconds == sum(
        RETRY.delay_seconds(failures, 0.0) for failures in range(1, 6)
    )


async def test_a_look_at_the_metadata_finds_what_the_watch_has_missed() -> None:
    server = Server(service("a", 1), service("b", 2))
    followed = Followed(server)
    await followed.to_its_end()
    assert not await followed.reflector.verify()
    server.items, server.version = [service("b", 12), service("c", 13)], 20
    followed.told.clear()
    assert await followed.reflector.verify()
    assert followed.state() == {"b": 12, "c": 13}
    assert followed.told == ["b", "c", "a"]
    assert followed.clock.elapsed_seconds == LAG_SECONDS


async def test_a_watch_that_is_merely_late_has_missed_nothing() -> None:
    server = Server(service("a", 1), service("b", 2))
    followed = Followed(server)
    await followed.to_its_end()
    server.items, server.version = [service("b", 12)], 20

    def catch_up() -> None:
        followed.objects.put(service("b", 12))
        followed.objects.remove(service("a", 13))

    followed.clock.on_sleep = catch_up
    before = server.lists
    assert not await followed.reflector.verify()
    assert server.lists == before


@pytest.mark.parametrize("is_needed", [True, False])
@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_right_that_is_missing_is_told_after_half_a_minute_where_the_kind_is_needed(
    verb: Verb, is_needed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    server = Server(service("a", 1))
    tries = 30
    if verb == "list":
        server.list_errors = [Response(403, {})] * tries
    else:
        server.watches = [[ApiError("GET", 403, "Forbidden", "")] for _ in range(tries)]
    followed = Followed(server, is_needed)
    told: list[tuple[float, bool]] = []
    followed.clock.on_sleep = lambda: told.append(
        (followed.clock.elapsed_seconds, bool(followed.blocked.now()))
    )
    await followed.to_its_end()
    assert told[-1][0] > 2 * PATIENCE_SECONDS
    late = PATIENCE_SECONDS + RETRY.cap_seconds
    assert not any(is_told for elapsed, is_told in told if elapsed < PATIENCE_SECONDS)
    assert all(is_told is is_needed for elapsed, is_told in told if elapsed > late)
    assert len(caplog.records) == is_needed
    if verb == "list":
        assert not followed.blocked.now(), "it may again"


@pytest.mark.parametrize("left", ["b", "bc"])
async def test_a_cluster_that_was_restored_from_a_backup_is_found_by_looking_at_it(
    left: str,
) -> None:
    server = Server(*(service(name, 6) for name in left))
    followed = Followed(server)
    await followed.to_its_end()
    server.items, server.version = [service("b", 4)], 5
    assert await followed.reflector.verify()
    assert followed.state() == {"b": 4}
