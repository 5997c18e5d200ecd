"""Nodes: a watch keeps them; heartbeats are no change; without the right to them nothing breaks."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import pytest
from sluice_operator.informer.nodes import NodeChange, Nodes, NodeWatch
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import Manifest

from tests.operator.virtual_time import FakeClock


class DoneError(Exception):
    """Ends a watch that would go on for ever."""


def node(name: str = "a", **parts: Any) -> Manifest:
    return {
        "metadata": {"name": name, "labels": parts.get("labels", {}), "resourceVersion": "7"},
        "spec": parts.get("spec", {}),
        "status": {
            "allocatable": {"cpu": "4", "nvidia.com/gpu": "1"} | parts.get("allocatable", {}),
            "conditions": [{"type": "Ready", "lastHeartbeatTime": parts.get("beat", "0")}],
        },
    }


class Server:
    """Lists `nodes`, or refuses; then sends each batch of `events` as one watch."""

    def __init__(self) -> None:
        self.nodes = [node()]
        self.list_status = 200
        self.watch_status = 200
        self.events: list[list[tuple[str, Manifest]]] = []
        self.lists = 0
        self.watched_from: list[str] = []
        self.cut = b""
        """In place of the next event's line."""

    async def send(self, request: Request) -> Response:
        self.lists += 1
        return Response(
            self.list_status, {"metadata": {"resourceVersion": "1"}, "items": self.nodes}
        )

    async def lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        self.watched_from.append(request.query["resourceVersion"])
        if self.watch_status != 200:
            raise ApiError(str(request), self.watch_status, "Forbidden", "")
        batch = self.events.pop(0) if self.events else []
        for kind, item in batch:
            line, self.cut = self.cut, b""
            yield line or json.dumps({"type": kind, "object": item}).encode()
        if not self.events:
            raise DoneError


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def nodes(server: Server) -> Nodes:
    return Nodes(ApiClient(server, lambda verb, plural: None))


def clock_of(server: Server, *steps: tuple[float, str, object]) -> FakeClock:
    """A clock that sets an attribute of the server once so many seconds are over."""
    clock = FakeClock()

    def step() -> None:
        for seconds, name, value in steps:
            if clock.elapsed_seconds > seconds:
                setattr(server, name, value)

    clock.on_sleep = step
    return clock


async def changes(server: Server, nodes: Nodes, clock: FakeClock | None = None) -> list[NodeChange]:
    """What a watch that has read the first list says of the rest."""
    found: list[NodeChange] = []

    def note(changed: Iterable[NodeChange]) -> None:
        found.extend(changed)

    with pytest.raises(DoneError):
        await NodeWatch(nodes, server, clock or FakeClock(), note).run()
    return found


async def test_status_updates_of_a_kubelet_are_no_changes(server: Server, nodes: Nodes) -> None:
    server.events = [[("MODIFIED", node(beat=str(n))) for n in range(100)]]
    assert await changes(server, nodes) == []


@pytest.mark.parametrize(
    "changed",
    [
        node(labels={"nvidia.com/gpu.product": "A100"}),
        node(spec={"unschedulable": True}),
        node(spec={"taints": [{"key": "k", "effect": "NoSchedule"}]}),
        node(allocatable={"nvidia.com/gpu": "2"}),
    ],
    ids=["labels", "unschedulable", "taints", "allocatable"],
)
async def test_what_decides_where_a_pod_can_run_is_a_change(
    server: Server, nodes: Nodes, changed: Manifest
) -> None:
    server.events = [[("MODIFIED", changed), ("MODIFIED", changed)]]
    (found,) = await changes(server, nodes)
    assert found.before != found.after
    assert [found.after] == list(await nodes.list() or ())


async def test_nodes_come_and_go(server: Server, nodes: Nodes) -> None:
    bookmark = {"metadata": {"resourceVersion": "9"}}
    server.events = [[("ADDED", node("b")), ("BOOKMARK", bookmark), ("DELETED", node("a"))]]
    come, gone = await changes(server, nodes)
    assert (come.before, gone.after) == (None, None)
    assert [item["metadata"]["name"] for item in await nodes.list() or ()] == ["b"]


async def test_what_happened_while_there_was_no_watch_is_found_by_reading_again(
    server: Server, nodes: Nodes
) -> None:
    await nodes.list()
    server.nodes = [node("b")]
    server.events = [[("ERROR", {"code": 410})]]
    assert len(await changes(server, nodes)) == 2
    assert server.lists == 3


@pytest.mark.parametrize("line", [b'{"type":"ADDED","obj', b"\xff\xfe"], ids=["cut", "no text"])
async def test_a_line_that_is_cut_off_is_a_watch_that_is(
    server: Server, nodes: Nodes, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.cut = line
    server.events = [[("ADDED", node("b")), ("ADDED", node("c"))], [("ADDED", node("b"))]]
    clock = FakeClock()
    (change,) = await changes(server, nodes, clock)
    assert change.after is not None
    assert change.after["metadata"]["name"] == "b"
    assert server.watched_from == ["1", "1"], "it goes on where it was"
    assert 0 < clock.elapsed_seconds < 5
    assert "nodes not followed" in caplog.text


async def test_without_the_right_to_list_them_there_are_none_and_the_watch_asks_again(
    server: Server, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.list_status = 403
    clock = clock_of(server, (300, "list_status", 200))
    assert await nodes.list() is None
    found = await changes(server, nodes, clock)
    assert [change.before for change in found] == [None], "they are all new"
    assert len(await nodes.list() or ()) == 1
    assert caplog.text.count("may not be followed") == 1


async def test_without_the_right_to_watch_them_they_are_listed_every_minute(
    server: Server, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.watch_status = 403
    clock = clock_of(server, (0, "nodes", [node(), node("b")]), (180, "watch_status", 200))
    assert len(await changes(server, nodes, clock)) == 1
    assert server.lists < 20, "there is a pause after each"
    assert caplog.text.count("may not be followed") == 1


async def test_a_refusal_that_follows_an_outage_is_logged_once(
    server: Server, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.list_status = 503
    clock = clock_of(server, (3, "list_status", 403), (300, "list_status", 200))
    await changes(server, nodes, clock)
    assert "nodes not followed" in caplog.text
    assert caplog.text.count("may not be followed") == 1


async def test_a_passing_refusal_forgets_nothing(server: Server, nodes: Nodes) -> None:
    await nodes.list()
    server.list_status = 403
    with pytest.raises(ApiError):
        await nodes.reread()
    assert len(await nodes.list() or ()) == 1


async def test_another_error_is_an_error(server: Server, nodes: Nodes) -> None:
    server.list_status = 400
    with pytest.raises(ApiError):
        await nodes.list()
