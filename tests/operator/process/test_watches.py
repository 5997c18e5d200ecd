"""Kopf over a real connection: what it tells, and that nothing a watch brings ends more than it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.cluster import labels
from sluice_operator.clock import SystemClock
from sluice_operator.informer.blocked import BlockedKinds
from sluice_operator.informer.keys import Key
from sluice_operator.informer.rights import Rights
from sluice_operator.informer.watch import NEEDED, Informer
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD, Kind
from sluice_operator.process import watches
from sluice_operator.process.tasks import until_one_ends
from sluice_operator.process.watches import Watches

from tests.operator.harness.cluster import by_kubeconfig
from tests.operator.harness.fake_api import discovery
from tests.operator.harness.proxy import kubeconfig_of
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def _nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's user has no name, as in a pod."""

    def getuser() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", getuser)


def service(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}}


def event(kind: str, item: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


class Server:
    """Lists `services`; the next watch of them brings what stands in `watches`, later ones are
    silent. Watches begin at a version."""

    def __init__(self) -> None:
        self.services = [service("a", 1)]
        self.version = 10
        self.watches: list[list[bytes]] = []
        self.refused: dict[str, int] = {}
        """Status of watches of a kind, by plural."""
        self.asked: list[web.Request] = []
        self.over = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        plural = request.path.rpartition("/")[2]
        if (found := discovery(request.path)) is not None:
            return web.json_response(found)
        is_short = "timeoutSeconds" in request.query
        if "watch" in request.query:
            assert "sendInitialEvents" not in request.query
            assert is_short or int(request.query["resourceVersion"]) >= self.version
            if status := self.refused.get(plural):
                return web.json_response({"code": status}, status=status)
            return await self._watch(request, plural, is_short)
        items = self.services if plural == INFERENCE_SERVICE.plural else []
        metadata = {"resourceVersion": str(self.version)}
        return web.json_response({"metadata": metadata, "items": items})

    def watched(self) -> dict[str, str | None]:
        """The label selector of each watch that was meant to last, by plural."""
        lasting = (r for r in self.asked if "watch" in r.query and "timeoutSeconds" not in r.query)
        return {r.path.rpartition("/")[2]: r.query.get("labelSelector") for r in lasting}

    async def _watch(self, request: web.Request, plural: str, ends: bool) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if not ends:
            if plural == INFERENCE_SERVICE.plural and self.watches:
                for line in self.watches.pop(0):
                    await response.write(line)
                if not self.watches:
                    return response
            await self.over.wait()
        return response


class Hasty(SystemClock):
    """Waits for nothing long."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.1))


class Told(Informer):
    """Notes what is told."""

    def take(self, kind: Kind, change: str, item: Mapping[str, Any]) -> None:
        super().take(kind, change, item)
        self.told.append((change, item["metadata"]["name"]))
        self.news.set()

    def noting(self) -> Told:
        self.told: list[tuple[str, str]] = []
        self.news = asyncio.Event()
        return self

    async def until(self, *told: tuple[str, str]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not set(told) <= set(self.told):
                self.news.clear()
                await self.news.wait()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Told, asyncio.Task[None]]]:
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", server.answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = kubeconfig_of(folder / "kubeconfig", runner.addresses[0][1])
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    connection = Connection(5.0, by_kubeconfig(kubeconfig))
    client, clock = ApiClient(connection, lambda verb, plural: None), SystemClock()
    keys: list[Key] = []
    informer = Told(client, Hasty(), (), (), keys.append).noting()
    rights = Rights(client, connection, clock, BlockedKinds(clock), ())
    following = Watches(informer, rights, clock, lambda: 0.0)
    running = [asyncio.create_task(each.run()) for each in (rights, following)]
    task = asyncio.create_task(until_one_ends(running))
    try:
        yield informer, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.over.set()
        await connection.aclose()
        await runner.cleanup()


async def test_what_is_listed_and_what_changes_is_told_and_children_are_chosen_by_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    changes = [event("MODIFIED", service("a", 11)), event("ADDED", service("b", 12))]
    server.watches = [[*changes, event("DELETED", service("b", 13))], []]
    async with watching(server, tmp_path, monkeypatch) as (informer, _):
        await informer.until(("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "b"))
        versions = dict(informer.objects[INFERENCE_SERVICE].versions(None))
        assert {name: each.number for (_, name), each in versions.items()} == {"a": 11}
        await eventually(lambda: server.watched().keys() == {kind.plural for kind in NEEDED})
    watched = server.watched()
    assert watched[POD.plural] == labels.SERVICE
    assert watched[INFERENCE_SERVICE.plural] is None


@pytest.mark.parametrize(
    "end",
    [
        b'{"type": "MODI',
        event("ERROR", {"kind": "Status", "code": 500, "metadata": {}}),
        event("ERROR", {"kind": "Status", "code": 410, "metadata": {}}),
    ],
    ids=["cut", "500", "410"],
)
async def test_a_watch_that_breaks_is_begun_anew_and_what_has_gone_is_found(
    end: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "kopf")
    server = Server()
    server.watches = [[end]]
    async with watching(server, tmp_path, monkeypatch) as (informer, task):
        known = informer.objects[INFERENCE_SERVICE]
        await eventually(lambda: known.get("x", "a") is not None)
        server.services, server.version = [service("b", 30)], 40
        await eventually(lambda: known.get("x", "b") is not None)
        await eventually(lambda: known.get("x", "a") is None)
        assert not task.done()
        assert informer.is_synced("x")


async def test_a_run_closes_its_sessions_though_kopf_is_cancelled_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[aiohttp.ClientSession] = []

    async def logs_in(*, registry: AsyncExitStack, **_: object) -> None:
        opened.append(await registry.enter_async_context(aiohttp.ClientSession()))
        raise asyncio.CancelledError

    monkeypatch.setattr(watches, "registered", lambda *parts: parts[-1])
    monkeypatch.setattr("kopf.operator", logs_in)
    async with watching(Server(), tmp_path, monkeypatch):
        await eventually(lambda: bool(opened) and opened[0].closed)
