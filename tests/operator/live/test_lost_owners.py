"""Owner references that are lost amid a roll-out, over a real API server and its garbage collector:
the former engines serve until the new ones do, then go; and a deletion leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import MANAGED_BY, SERVICE
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import Request
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    SECRET,
    SERVICE_CHILDREN,
    Manifest,
    controller_uid,
)

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, chat_that_serves, is_ready, play_controllers

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
OURS: Final = (*SERVICE_CHILDREN, SECRET)
BACKED_UP: Final = (INFERENCE_SERVICE, *OURS, POD)
NEW: Final[Manifest] = {"engine": {"chunkSize": 256}}
SERVER_SET: Final = frozenset({"clusterIP", "clusterIPs"})
PATIENCE_SECONDS: Final = 90.0
"""The garbage collector learns of new kinds every 30 seconds."""


async def amid_a_roll_out(cluster: Cluster, namespace: str) -> str:
    """A service whose new engines start; the Deployment of its former ones."""
    await chat_that_serves(cluster, namespace)
    before = await cluster.list(DEPLOYMENT, namespace)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": NEW})
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await comes_to_rest(cluster, namespace)
    (former,) = before.keys() - {"chat-router"}
    return former


async def goes_on(cluster: Cluster, namespace: str, former: str) -> None:
    for kind in OURS:
        await cluster.until(kind, namespace, all_are_owned, PATIENCE_SECONDS)
    await comes_to_rest(cluster, namespace)
    service = await cluster.get(INFERENCE_SERVICE, namespace, "chat")
    assert condition(service, "Updated")["status"] == "False"
    assert (await cluster.list(DEPLOYMENT, namespace))[former]["spec"]["replicas"] == 1
    await play_controllers(cluster, namespace, deployments=3)
    await cluster.until(INFERENCE_SERVICE, namespace, is_ready(), PATIENCE_SECONDS)
    assert former not in await cluster.list(DEPLOYMENT, namespace)
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    for kind in (*OURS, POD):
        await cluster.until(kind, namespace, has_none_of_ours, PATIENCE_SECONDS)


def ours(found: State) -> list[Manifest]:
    return [item for item in found.values() if SERVICE in item["metadata"].get("labels", {})]


def all_are_owned(found: State) -> bool:
    return all(map(controller_uid, ours(found)))


def has_none_of_ours(found: State) -> bool:
    return ours(found) == []


async def orphan_the_pool(plane: ApiServer, cluster: Cluster, namespace: str) -> None:
    words = ("enginepool", "chat-mixed", "--cascade=orphan", "-n", namespace)
    pool = (await cluster.get(ENGINE_POOL, namespace, "chat-mixed"))["metadata"]["uid"]
    plane.kubectl("delete", *words, "--wait=false")
    await cluster.until(
        ENGINE_POOL,
        namespace,
        lambda found: "chat-mixed" in found and found["chat-mixed"]["metadata"]["uid"] != pool,
        PATIENCE_SECONDS,
    )


async def orphan_the_service(plane: ApiServer, cluster: Cluster, namespace: str) -> None:
    plane.kubectl("delete", "infsvc", "chat", "--cascade=orphan", "-n", namespace)
    assert (await cluster.list(SECRET, namespace))["chat-handover"]
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **NEW))


@pytest.mark.parametrize("lose", [orphan_the_pool, orphan_the_service])
async def test_what_is_orphaned_amid_a_roll_out_is_rolled_out_all_the_same(
    plane: ApiServer,
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    lose: Callable[[ApiServer, Cluster, str], Awaitable[None]],
) -> None:
    start_operator()
    former = await amid_a_roll_out(cluster, namespace)
    await lose(plane, cluster, namespace)
    await goes_on(cluster, namespace, former)


async def test_a_backup_of_a_roll_out_that_is_restored_without_owners_goes_on(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    former = await amid_a_roll_out(cluster, namespace)
    assert await operator.terminate() == 0
    backup = [
        {"apiVersion": kind.api_version, "kind": kind.kind, **item}
        for kind in BACKED_UP
        for item in (await cluster.list(kind, namespace)).values()
    ]
    for kind in BACKED_UP:
        for name in await cluster.list(kind, namespace):
            await cluster.try_send(Request("DELETE", path(kind, namespace, name)))
    for kind in BACKED_UP:
        await cluster.until(kind, namespace, lambda found: not found, PATIENCE_SECONDS)
    listing = {"apiVersion": "v1", "kind": "List", "items": list(map(restored, backup))}
    plane.kubectl("create", "-f", "-", stdin=json.dumps(listing))
    history = await cluster.list(CONTROLLER_REVISION, namespace)
    assert history
    assert not any(map(controller_uid, history.values()))
    key = (await cluster.list(SECRET, namespace))["chat-handover"]["data"]
    for name in await cluster.list(POD, namespace):
        await cluster.delete(POD, namespace, name)
    start_operator("operator-1")
    await cluster.until(SECRET, namespace, all_are_owned, PATIENCE_SECONDS)
    assert (await cluster.list(SECRET, namespace))["chat-handover"]["data"] == key
    await goes_on(cluster, namespace, former)


def restored(item: Manifest) -> Manifest:
    """As backup tools make it: without owners, statuses and what the API server sets."""
    kept = {"name", "namespace", "labels", "annotations"}
    metadata = {key: value for key, value in item["metadata"].items() if key in kept}
    made: dict[str, Any] = {key: value for key, value in item.items() if key != "status"}
    if "spec" in item:
        addresses = {key for key in SERVER_SET if "None" not in item["spec"].get(key, "")}
        made["spec"] = {k: v for k, v in item["spec"].items() if k not in addresses}
    return made | {"metadata": metadata}


async def test_a_secret_of_that_name_that_a_person_has_made_stays_theirs(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    metadata = {"name": "chat-handover", "namespace": namespace, "labels": {SERVICE: "chat"}}
    theirs: Manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    await cluster.create(SECRET, theirs | {"stringData": {"key": "k" * 32}})
    start_operator()
    former = await amid_a_roll_out(cluster, namespace)
    await orphan_the_pool(plane, cluster, namespace)
    await cluster.until(
        DEPLOYMENT, namespace, lambda found: controller_uid(found[former]), PATIENCE_SECONDS
    )
    await comes_to_rest(cluster, namespace)
    after = await cluster.get(SECRET, namespace, "chat-handover")
    assert "ownerReferences" not in after["metadata"]
    assert MANAGED_BY not in after["metadata"]["labels"]
