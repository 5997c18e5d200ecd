"""What becomes of what watches tell, and what is found without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.informer.keys import Key
from sluice_operator.informer.reader import StoreReader
from sluice_operator.informer.watch import CHILDREN, LAG_SECONDS, NEEDED, Informer
from sluice_operator.kube.client import METADATA_ONLY, ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    POD_MONITOR,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
)

from tests.operator.virtual_time import FakeClock

CHAT = Key("InferenceService", "x", "chat")
POOL = Key("EnginePool", "x", "chat-mixed")
OF_CHAT = {labels.SERVICE: "chat", labels.ROLE: "mixed"}


class Server:
    """Has `items` of each kind at `version`."""

    def __init__(self) -> None:
        self.items: dict[str, list[Manifest]] = {}
        self.version = 10
        self.asked: list[Request] = []
        self.forbidden: set[str] = set()
        """Kinds, by plural, or namespaces that may not be listed."""

    async def send(self, request: Request) -> Response:
        self.asked.append(request)
        await asyncio.sleep(0)
        if self.forbidden & set(request.path.split("/")):
            return Response(403, {"reason": "Forbidden"})
        plurals = {kind.plural for kind in (*NEEDED, POD_MONITOR)}
        *_, plural, name = request.path.split("/")
        if name in plurals:
            metadata = {"resourceVersion": str(self.version)}
            return Response(200, {"metadata": metadata, "items": list(self._found(request, name))})
        found = [item for item in self.items.get(plural, []) if item["metadata"]["name"] == name]
        return Response(200, found[0]) if found else Response(404, {"reason": "NotFound"})

    def _found(self, request: Request, plural: str) -> Iterator[Manifest]:
        is_whole = request.accept != METADATA_ONLY
        for each in self.items.get(plural, []):
            namespace = f"/namespaces/{each['metadata']['namespace']}/"
            if namespace in request.path or "/namespaces/" not in request.path:
                yield each if is_whole else {"metadata": each["metadata"]}


def item(name: str, version: int, namespace: str = "x", **labelled: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labelled}}


class Followed:
    """An informer of `server`, and its keys."""

    def __init__(
        self, server: Server, namespaces: tuple[str, ...] = (), optional: Any = ()
    ) -> None:
        self.keys: list[Key] = []
        self.clock = FakeClock()
        self.server = server
        client = ApiClient(server, lambda verb, plural: None)
        self.informer = Informer(client, self.clock, namespaces, optional, self.keys.append)
        self.namespaces: tuple[str | None, ...] = namespaces or (None,)

    def state(self, kind: Kind) -> dict[str, int]:
        versions = self.informer.objects[kind].versions(None)
        return {name: version.number for (_, name), version in versions}


async def synced(server: Server, namespaces: tuple[str, ...] = (), optional: Any = ()) -> Followed:
    """An informer that has listed everything that may be."""
    followed = Followed(server, namespaces, optional)
    usable = [name for name in followed.namespaces if name not in server.forbidden]
    await followed.informer.list_all(usable)
    return followed


def busy() -> Server:
    server = Server()
    server.items["inferenceservices"] = [item("chat", 1)]
    server.items["pods"] = [item("chat-mixed-0", 2, **OF_CHAT)]
    return server


async def test_nothing_is_queued_before_everything_was_listed() -> None:
    server = busy()
    followed = Followed(server)
    followed.informer.take(INFERENCE_SERVICE, "ADDED", item("chat", 1))
    server.forbidden = {"pods"}
    with pytest.raises(ApiError, match="pods: 403"):
        await followed.informer.list_all((None,))
    assert not followed.informer.is_synced("x")
    assert followed.keys == []
    server.forbidden, server.asked = set(), []
    await followed.informer.list_all((None,))
    assert [request.path for request in server.asked] == ["/api/v1/pods"]
    assert followed.informer.is_synced("x")
    assert CHAT in followed.keys


async def test_a_watch_begins_where_the_last_listing_ended() -> None:
    server = busy()
    followed = await synced(server)
    server.asked.clear()
    server.version = 30
    assert await followed.informer.version_to_watch("/api/v1/pods") == "10"
    assert server.asked == []


async def test_a_watch_that_begins_anew_begins_with_a_listing_which_finds_what_has_gone() -> None:
    server = busy()
    followed = await synced(server)
    await followed.informer.version_to_watch("/api/v1/pods")
    followed.keys.clear()
    server.items["pods"], server.version = [item("chat-mixed-1", 21, **OF_CHAT)], 30
    assert await followed.informer.version_to_watch("/api/v1/pods") == "30"
    assert followed.state(POD) == {"chat-mixed-1": 21}
    assert set(followed.keys) == {POOL}


async def test_what_we_wrote_makes_keys_when_a_listing_tells_of_it() -> None:
    """The watch begins after it, and will not."""
    server = busy()
    followed = await synced(server)
    await followed.informer.version_to_watch("/api/v1/pods")
    written = item("chat-mixed-1", 21, **OF_CHAT)
    followed.informer.written(POD, written)
    server.items["pods"], server.version = [*server.items["pods"], written], 30
    followed.keys.clear()
    await followed.informer.version_to_watch("/api/v1/pods")
    assert POOL in followed.keys
    followed.keys.clear()
    await followed.informer.version_to_watch("/api/v1/pods")
    assert followed.keys == [], "once"


async def test_a_watch_of_something_else_begins_where_it_likes() -> None:
    followed = await synced(busy())
    assert await followed.informer.version_to_watch("/api/v1/nodes") is None


async def test_an_edit_of_a_service_concerns_the_pools_that_there_are() -> None:
    server = busy()
    server.items["enginepools"] = [item("chat-mixed", 3, **OF_CHAT)]
    followed = await synced(server)
    followed.keys.clear()
    followed.informer.take(INFERENCE_SERVICE, "MODIFIED", item("chat", 12))
    assert set(followed.keys) == {CHAT, POOL}


def deployment(version: int, available: int) -> Manifest:
    status = {"status": {"availableReplicas": available, "updatedReplicas": version}}
    owned = item("chat-mixed-1", version, **OF_CHAT)
    owner = {"apiVersion": "serving.sluice.dev/v1alpha1", "kind": POOL.kind, "name": POOL.name}
    owned["metadata"]["ownerReferences"] = [owner | {"uid": "pool", "controller": True}]
    return owned | status


async def test_a_deployment_concerns_its_service_when_another_number_is_available() -> None:
    followed = await synced(busy())
    told = ((11, 0, True), (12, 0, False), (13, 1, True), (14, 1, False))
    for version, available, concerns_service in told:
        followed.keys.clear()
        followed.informer.take(DEPLOYMENT, "MODIFIED", deployment(version, available))
        assert POOL in followed.keys
        assert (CHAT in followed.keys) == concerns_service
    followed.keys.clear()
    followed.informer.written(DEPLOYMENT, deployment(16, 2))
    assert CHAT in followed.keys, "the watch will not tell of it any more"
    followed.keys.clear()
    followed.informer.take(DEPLOYMENT, "DELETED", deployment(17, 2))
    assert CHAT in followed.keys


@pytest.mark.parametrize(
    ("kind", "again"),
    [(CONFIG_MAP, False), (CONTROLLER_REVISION, False), (ENGINE_POOL, True)],
)
async def test_what_others_may_have_changed_in_an_answer_is_looked_at_when_it_is_told(
    kind: Kind, again: bool
) -> None:
    followed = await synced(busy())
    written = item("chat-mixed", 12, **{labels.SERVICE: "chat"})
    followed.informer.written(kind, written)
    followed.keys.clear()
    followed.informer.take(kind, "MODIFIED", written)
    assert (CHAT in followed.keys) == again
    followed.informer.take(kind, "MODIFIED", item("chat-mixed", 13, **{labels.SERVICE: "chat"}))
    assert CHAT in followed.keys


async def test_every_kind_is_listed_by_its_label_and_our_own_kinds_whole() -> None:
    server = Server()
    followed = await synced(server, (), (POD_MONITOR,))
    kinds = {INFERENCE_SERVICE, ENGINE_POOL, POD, POD_MONITOR, *SERVICE_CHILDREN}
    assert set(followed.informer.objects) == kinds
    assert {request.path.rpartition("/")[2] for request in server.asked} == {
        kind.plural for kind in kinds
    }
    for request in server.asked:
        kind = request.path.rpartition("/")[2]
        child = kind in {child.plural for child in (*CHILDREN, POD_MONITOR)}
        assert request.query.get("labelSelector") == (labels.SERVICE if child else None)


async def test_a_namespace_that_may_not_be_listed_keeps_no_other_waiting() -> None:
    server = busy()
    server.items["inferenceservices"].append(item("other", 1, "gone"))
    server.forbidden = {"gone"}
    followed = await synced(server, ("x", "gone"))
    assert followed.informer.is_synced("x")
    assert not followed.informer.is_synced("gone")
    assert CHAT in followed.keys
    followed.informer.add(Key("InferenceService", "gone", "other"))
    assert all(key.namespace == "x" for key in followed.keys)


async def test_nobody_waits_for_an_optional_kind_that_may_not_be_listed() -> None:
    server = busy()
    server.forbidden = {"podmonitors"}
    followed = await synced(server, (), (POD_MONITOR,))
    assert followed.informer.is_synced("x")
    reader = reader_of(followed)
    with pytest.raises(ApiError, match="403"):
        await reader.list_objects(POD_MONITOR, "x", f"{labels.SERVICE}=chat")


async def test_what_changes_and_what_goes_makes_keys() -> None:
    followed = await synced(busy())
    for change, version in (("MODIFIED", 11), ("DELETED", 12)):
        followed.keys.clear()
        followed.informer.take(POD, change, item("chat-mixed-0", version, **OF_CHAT))
        assert set(followed.keys) == {POOL}
    assert followed.state(POD) == {}


async def test_an_event_from_before_the_listing_changes_nothing() -> None:
    followed = await synced(busy())
    followed.informer.take(POD, "ADDED", item("chat-mixed-1", 9, **OF_CHAT))
    assert followed.state(POD) == {"chat-mixed-0": 2}


async def test_a_look_at_the_metadata_finds_what_the_watch_has_missed() -> None:
    server = busy()
    server.items["pods"].append(item("chat-mixed-1", 3, **OF_CHAT))
    followed = await synced(server)
    assert not followed.informer.has_missed.is_set()
    server.items["pods"] = [item(f"chat-mixed-{n}", 12 + n, **OF_CHAT) for n in (1, 2)]
    server.version = 20
    followed.keys.clear()
    before = followed.clock.elapsed_seconds
    await followed.informer.verify()
    assert followed.state(POD) == {"chat-mixed-1": 13, "chat-mixed-2": 14}
    assert set(followed.keys) == {CHAT, POOL}
    assert followed.clock.elapsed_seconds - before == LAG_SECONDS
    assert followed.informer.has_missed.is_set()


async def test_a_watch_that_is_merely_late_has_missed_nothing() -> None:
    server = busy()
    followed = await synced(server)
    server.items["pods"], server.version = [item("chat-mixed-1", 12, **OF_CHAT)], 20

    def catch_up() -> None:
        followed.informer.take(POD, "ADDED", item("chat-mixed-1", 12, **OF_CHAT))
        followed.informer.take(POD, "DELETED", item("chat-mixed-0", 13, **OF_CHAT))

    followed.clock.on_sleep = catch_up
    await followed.informer.verify()
    assert not followed.informer.has_missed.is_set()


@pytest.mark.parametrize("left", ["1", "12"])
async def test_a_cluster_that_was_restored_from_a_backup_is_found_by_looking_at_it(
    left: str,
) -> None:
    server = busy()
    server.items["pods"] = [item(f"chat-mixed-{n}", 6, **OF_CHAT) for n in left]
    followed = await synced(server)
    server.items["pods"], server.version = [item("chat-mixed-1", 4, **OF_CHAT)], 5
    await followed.informer.verify()
    assert followed.state(POD) == {"chat-mixed-1": 4}


async def test_a_kind_that_cannot_be_compared_keeps_no_other_from_being_looked_at() -> None:
    server = busy()
    followed = await synced(server)
    followed.keys.clear()
    server.asked.clear()
    server.forbidden = {"inferenceservices", "configmaps"}
    with pytest.raises(ApiError, match="inferenceservices: 403"):
        await followed.informer.verify()
    assert followed.keys == [CHAT]
    assert len({request.path for request in server.asked}) == len(followed.informer.objects)


async def test_the_answer_to_a_write_is_read_before_the_watch_tells_of_it() -> None:
    followed = await synced(Server())
    followed.informer.written(DEPLOYMENT, item("chat-mixed", 11, **{labels.SERVICE: "chat"}))
    (found,) = await reader_of(followed).list_objects(DEPLOYMENT, "x", f"{labels.SERVICE}=chat")
    assert found["metadata"]["resourceVersion"] == "11"
    assert found["kind"] == "Deployment"


def reader_of(followed: Followed) -> StoreReader:
    """A reader whose requests alone are in `asked`."""
    followed.server.asked.clear()
    client = ApiClient(followed.server, lambda verb, plural: None)
    return StoreReader(followed.informer.objects, client)


async def test_a_kind_that_is_not_followed_is_read_from_the_api_server() -> None:
    followed = await synced(Server())
    reader = reader_of(followed)
    await reader.get(POD_MONITOR, "x", "chat")
    await reader.list_kinds((DEPLOYMENT,), "x", f"{labels.SERVICE}=chat")
    (asked,) = followed.server.asked
    assert asked.path.endswith("/podmonitors/chat")


async def test_what_is_decisive_is_read_from_the_api_server_where_it_has_to_be_certain() -> None:
    followed = await synced(Server())
    reader = reader_of(followed).certain()
    await reader.get(INFERENCE_SERVICE, "x", "chat")
    await reader.get(ENGINE_POOL, "x", "chat-mixed")
    paths = [request.path.rpartition("/")[2] for request in followed.server.asked]
    assert paths == ["chat", "chat-mixed"]


async def test_a_child_that_may_have_lost_its_label_is_asked_for() -> None:
    followed = await synced(Server())
    reader = reader_of(followed)
    assert await reader.get(INFERENCE_SERVICE, "x", "chat") is None
    assert followed.server.asked == []
    await reader.get(CONFIG_MAP, "x", "chat-1")
    (asked,) = followed.server.asked
    assert asked.path == "/api/v1/namespaces/x/configmaps/chat-1"


@pytest.mark.parametrize("selector", ["app=x", f"{labels.SERVICE}=chat,app=x"])
async def test_a_selector_without_an_index_is_a_mistake(selector: str) -> None:
    reader = reader_of(await synced(Server()))
    with pytest.raises((AssertionError, KeyError)):
        await reader.list_objects(DEPLOYMENT, "x", selector)
