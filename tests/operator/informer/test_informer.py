"""What is followed, by which selectors, and what becomes of a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sluice_contract import labels
from sluice_operator.informer.blocked import BlockedKinds
from sluice_operator.informer.keys import Key
from sluice_operator.informer.reader import StoreReader
from sluice_operator.informer.reflector import Source
from sluice_operator.informer.watch import CHILDREN, Informer
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    POD_MONITOR,
    SERVICE_CHILDREN,
    Manifest,
)

from tests.operator.virtual_time import FakeClock

CHAT = Key("InferenceService", "x", "chat")


class Server:
    """Has `items` by their path, and tells no events."""

    def __init__(self) -> None:
        self.items: dict[str, list[Manifest]] = {}
        self.asked: list[Request] = []
        self.watching = asyncio.Semaphore(0)
        self.forbidden: set[str] = set()
        """Kinds, by plural, that may not be listed."""

    async def send(self, request: Request) -> Response:
        self.asked.append(request)
        await asyncio.sleep(0)
        if request.path.rpartition("/")[2] in self.forbidden:
            return Response(403, {"reason": "Forbidden"})
        if request.path.endswith(("/chat", "/chat-1")):
            return Response(404, {"reason": "NotFound"})
        items = self.items.get(request.path, [])
        return Response(200, {"metadata": {"resourceVersion": "10"}, "items": items})

    async def lines(self, request: Request) -> AsyncIterator[bytes]:
        self.asked.append(request)
        self.watching.release()
        await asyncio.Event().wait()
        yield b""


def informer(
    server: Server, keys: list[Key], namespaces: tuple[str, ...] = (), optional: Any = ()
) -> Informer:
    client = ApiClient(server, lambda verb, plural: None)
    clock, turns = FakeClock(), asyncio.Semaphore(2)
    source = Source(client, server, clock, lambda: 0.0, turns, BlockedKinds(clock))
    return Informer(source, namespaces, optional, keys.append)


def item(name: str, version: int, **labelled: str) -> Manifest:
    metadata = {"name": name, "namespace": "x", "uid": name, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labelled}}


async def followed(server: Server, *arguments: Any) -> tuple[Informer, list[Key]]:
    """An informer that has listed everything, and the keys that came of it."""
    keys: list[Key] = []
    made = informer(server, keys, *arguments)
    task = asyncio.create_task(made.run())
    await made.synced()
    for _ in range(len(made._reflectors) - len(server.forbidden)):
        await server.watching.acquire()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return made, keys


async def test_both_kinds_and_every_kind_of_child_are_followed_everywhere() -> None:
    server = Server()
    made, _ = await followed(server, (), (POD_MONITOR,))
    kinds = {INFERENCE_SERVICE, ENGINE_POOL, POD, POD_MONITOR, *SERVICE_CHILDREN}
    assert set(made.objects) == kinds
    watched = [request for request in server.asked if "watch" in request.query]
    assert len({request.path for request in watched}) == len(kinds)
    assert not any("/namespaces/" in request.path for request in watched)


async def test_each_namespace_is_followed_by_itself() -> None:
    server = Server()
    made, _ = await followed(server, ("x", "y"))
    paths = {request.path for request in server.asked if "watch" in request.query}
    assert len(paths) == 2 * len(made.objects)
    assert all("/namespaces/x/" in path or "/namespaces/y/" in path for path in paths)


async def test_children_are_followed_by_label_and_our_own_kinds_whole() -> None:
    server = Server()
    await followed(server)
    for request in server.asked:
        kind = request.path.rpartition("/")[2]
        child = kind in {child.plural for child in CHILDREN}
        assert request.query.get("labelSelector") == (labels.SERVICE if child else None)


async def test_what_is_listed_and_what_is_verified_becomes_keys() -> None:
    server = Server()
    server.items["/apis/serving.sluice.dev/v1alpha1/inferenceservices"] = [item("chat", 1)]
    pod = item("chat-mixed-0", 2, **{labels.SERVICE: "chat", labels.ROLE: "mixed"})
    server.items["/api/v1/pods"] = [pod]
    made, keys = await followed(server)
    pools = {Key("EnginePool", "x", f"chat-{role}") for role in labels.Role}
    assert set(keys) == {CHAT, *pools}
    keys.clear()
    await made.verify()
    assert keys == [CHAT]


async def test_the_answer_to_a_write_is_read_before_the_watch_tells_of_it() -> None:
    server = Server()
    made, _ = await followed(server)
    client = ApiClient(server, lambda verb, plural: None)
    reader = StoreReader(made.objects, client)
    made.written(DEPLOYMENT, item("chat-mixed", 11, **{labels.SERVICE: "chat"}))
    (found,) = await reader.list_objects(DEPLOYMENT, "x", f"{labels.SERVICE}=chat")
    assert found["metadata"]["resourceVersion"] == "11"
    assert found["kind"] == "Deployment"


async def test_a_kind_that_is_not_followed_is_read_from_the_api_server() -> None:
    server = Server()
    made, _ = await followed(server)
    server.asked.clear()
    reader = StoreReader(made.objects, ApiClient(server, lambda verb, plural: None))
    selector = f"{labels.SERVICE}=chat"
    assert await reader.list_kinds((DEPLOYMENT, POD_MONITOR), "x", selector) == ()
    (asked,) = server.asked
    assert asked.path.endswith("/podmonitors")


async def test_what_is_decisive_is_read_from_the_api_server_where_it_has_to_be_certain() -> None:
    server = Server()
    made, _ = await followed(server)
    server.asked.clear()
    reader = StoreReader(made.objects, ApiClient(server, lambda verb, plural: None)).certain()
    await reader.get(INFERENCE_SERVICE, "x", "chat")
    await reader.list_kinds(SERVICE_CHILDREN, "x", f"{labels.SERVICE}=chat")
    asked = {request.path.rpartition("/")[2] for request in server.asked}
    assert asked == {"chat", "deployments", "enginepools"}


async def test_a_child_that_may_have_lost_its_label_is_asked_for() -> None:
    server = Server()
    made, _ = await followed(server)
    server.asked.clear()
    reader = StoreReader(made.objects, ApiClient(server, lambda verb, plural: None))
    assert await reader.get(INFERENCE_SERVICE, "x", "chat") is None
    assert server.asked == []
    await reader.get(CONFIG_MAP, "x", "chat-1")
    assert [request.path for request in server.asked] == ["/api/v1/namespaces/x/configmaps/chat-1"]


@pytest.mark.parametrize("selector", ["app=x", f"{labels.SERVICE}=chat,app=x"])
async def test_a_selector_without_an_index_is_a_mistake(selector: str) -> None:
    made, _ = await followed(Server())
    reader = StoreReader(made.objects, ApiClient(Server(), lambda verb, plural: None))
    with pytest.raises((AssertionError, KeyError)):
        await reader.list_objects(DEPLOYMENT, "x", selector)


async def test_nobody_waits_for_an_optional_kind_that_may_not_be_listed() -> None:
    server = Server()
    server.forbidden = {"podmonitors"}
    made, _ = await followed(server, (), (POD_MONITOR,))
    reader = StoreReader(made.objects, ApiClient(server, lambda verb, plural: None))
    with pytest.raises(ApiError, match="403"):
        await reader.list_objects(POD_MONITOR, "x", f"{labels.SERVICE}=chat")


async def test_a_kind_that_cannot_be_compared_keeps_no_other_from_being_looked_at() -> None:
    server = Server()
    server.items["/apis/serving.sluice.dev/v1alpha1/inferenceservices"] = [item("chat", 1)]
    made, keys = await followed(server)
    keys.clear()
    server.asked.clear()
    server.forbidden = {"inferenceservices", "configmaps"}
    with pytest.raises(ApiError, match="inferenceservices: 403"):
        await made.verify()
    assert keys == [CHAT]
    assert len({request.path for request in server.asked}) == len(made.objects)
