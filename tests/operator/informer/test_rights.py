"""Which namespaces are usable, what is said of the others, and when it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from sluice_operator.informer.blocked import PATIENCE_SECONDS, BlockedKinds
from sluice_operator.informer.rights import AGAIN_SECONDS, CALM_SECONDS, Rights
from sluice_operator.informer.watch import NEEDED
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import POD_MONITOR

from tests.operator.virtual_time import FakeClock


class Server:
    """Refuses what is in `refused`: verb and path."""

    def __init__(self) -> None:
        self.refused: dict[tuple[str, str], int] = {}
        self.asked: list[str] = []

    async def send(self, request: Request) -> Response:
        assert request.query == {"limit": "1"}
        self.asked.append(request.path)
        status = self.refused.get(("list", request.path), 200)
        return Response(status, {"metadata": {"resourceVersion": "7"}})

    async def lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        assert request.query["resourceVersion"] == "7"
        if status := self.refused.get(("watch", request.path)):
            raise ApiError(str(request), status, "", "")
        return
        yield b""


class Asked:
    """Rights in two namespaces, unless all are asked for together."""

    def __init__(self, server: Server, namespaces: tuple[str, ...] = ("x", "gone")) -> None:
        self.clock = FakeClock()
        self.blocked = BlockedKinds(self.clock)
        client = ApiClient(server, lambda verb, plural: None)
        self.rights = Rights(client, server, self.clock, self.blocked, namespaces)


PODS = "/api/v1/namespaces/gone/pods"


async def test_every_needed_kind_is_asked_for_in_each_namespace() -> None:
    server = Server()
    asked = Asked(server)
    await asked.rights.look()
    assert asked.rights.usable == ("x", "gone")
    assert asked.rights.are_complete.is_set()
    assert len(set(server.asked)) == 2 * len(NEEDED)


async def test_one_namespace_without_a_right_is_left_out_and_told() -> None:
    server = Server()
    server.refused["list", PODS] = 403
    asked = Asked(server)
    for _ in range(2):
        await asked.rights.look()
        asked.clock.elapsed_seconds += PATIENCE_SECONDS
    assert "gone" not in asked.rights.usable
    assert "x" in asked.rights.usable
    assert not asked.rights.are_complete.is_set(), "a standby is not ready"
    assert asked.blocked.reason() == "no right to list pods in namespace gone"
    server.refused.clear()
    await asked.rights.look()
    assert asked.rights.usable == ("x", "gone")
    assert asked.blocked.reason() == ""


async def test_a_right_to_watch_and_a_token_that_is_refused_count_too() -> None:
    server = Server()
    server.refused["watch", PODS] = 403
    server.refused["list", "/api/v1/namespaces/x/pods"] = 401
    asked = Asked(server)
    for _ in range(2):
        await asked.rights.look()
        asked.clock.elapsed_seconds += PATIENCE_SECONDS
    assert asked.rights.usable == ()
    assert "no right to watch pods in namespace gone" in asked.blocked.reason()
    assert "cannot list pods in namespace x" in asked.blocked.reason()


async def test_an_outage_takes_no_namespace_away() -> None:
    server = Server()
    asked = Asked(server, ())
    await asked.rights.look()
    asked.rights.changed.clear()
    server.refused["list", "/api/v1/pods"] = 503
    await asked.rights.look()
    assert asked.rights.usable == (None,)
    assert not asked.rights.changed.is_set()


async def test_it_is_asked_again_soon_while_something_is_missing() -> None:
    server = Server()
    server.refused["list", PODS] = 403
    asked = Asked(server)
    pauses: list[float] = []
    before, enough = 0.0, asyncio.Event()

    def slept() -> None:
        nonlocal before
        pauses.append(asked.clock.elapsed_seconds - before)
        before = asked.clock.elapsed_seconds
        if len(pauses) == 2:
            server.refused.clear()
        if len(pauses) == 4:
            enough.set()

    asked.clock.on_sleep = slept
    task = asyncio.create_task(asked.rights.run())
    await enough.wait()
    task.cancel()
    assert pauses[:4] == [AGAIN_SECONDS, AGAIN_SECONDS, 2 * CALM_SECONDS, 2 * CALM_SECONDS]


async def test_an_optional_kind_is_followed_where_it_may_be_watched_everywhere() -> None:
    server = Server()
    asked = Asked(server)
    assert await asked.rights.can_follow(POD_MONITOR)
    path = "/apis/monitoring.coreos.com/v1/namespaces/gone/podmonitors"
    server.refused["watch", path] = 403
    assert not await asked.rights.can_follow(POD_MONITOR)
