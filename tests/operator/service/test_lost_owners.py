"""Children that have lost their owner references, or whose owners have: taken over, rolled out as
former revisions, or named. Never two versions that answer while all is said to be ready."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.api.conditions import UPDATED, UPGRADE_AVAILABLE
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    SECRET,
    SERVICE,
    Kind,
    Manifest,
    controller_uid,
)
from sluice_operator.manifests.pods import POD_SECURITY

from tests.operator.examples import service
from tests.operator.harness.memory_cluster import MemoryCluster, running
from tests.operator.statuses import condition

pytestmark = pytest.mark.process
SPEC: Manifest = {"replicas": 2}
MODES: dict[str, Manifest] = {"one pool": {}, "two pools": {"prefill": {}}}


def is_engine(deployment: str) -> bool:
    return deployment.startswith(("chat-mixed-", "chat-prefill-", "chat-decode-"))


def engines(cluster: MemoryCluster) -> list[str]:
    return [name for name in cluster.names(DEPLOYMENT) if is_engine(name)]


def updated(cluster: MemoryCluster) -> tuple[str, str]:
    found = condition(cluster.status, UPDATED)
    return found["status"], found["reason"]


def unowned(cluster: MemoryCluster) -> list[str]:
    """All but the service itself, and pods, that nothing controls."""
    return sorted(
        f"{kind.kind} {name}"
        for (kind, name), item in cluster.api.objects.items()
        if kind not in (INFERENCE_SERVICE, POD) and controller_uid(item) is None
    )


async def amid_a_roll_out(**spec: Any) -> tuple[MemoryCluster, list[str]]:
    """A service whose new engines do not start, and the Deployments of the former ones."""
    cluster = await running(**SPEC, **spec)
    former = engines(cluster)
    cluster.is_down = lambda name: is_engine(name) and name not in former
    await cluster.edited(engine={"chunkSize": 64})
    assert len(engines(cluster)) == 2 * len(former)
    return cluster, former


async def goes_on(cluster: MemoryCluster, former: list[str]) -> None:
    """The former engines serve until the new ones do, then they go; and a deletion leaves
    nothing."""
    await cluster.reconciled()
    assert set(former) < set(engines(cluster)), "they serve until the new ones do"
    assert unowned(cluster) == []
    assert updated(cluster)[0] == "False"
    cluster.is_down = lambda name: False
    await cluster.reconciled()
    assert updated(cluster) == ("True", "AllReady")
    assert not set(former) & set(engines(cluster))
    leaves_nothing(cluster)


def leaves_nothing(cluster: MemoryCluster) -> None:
    cluster.api.delete(INFERENCE_SERVICE, "chat")
    cluster.collects_garbage()
    assert [place for place in cluster.api.objects if place[0] != POD] == []


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
async def test_an_orphaned_pool_amid_a_roll_out(mode: Manifest) -> None:
    cluster, former = await amid_a_roll_out(**mode)
    for pool in cluster.names(ENGINE_POOL):
        cluster.orphans(ENGINE_POOL, pool)
    await goes_on(cluster, former)


async def test_a_scaled_pool_that_is_orphaned_keeps_the_engines_that_it_had() -> None:
    cluster = await running(autoscaling={"minReplicas": 0, "maxReplicas": 5})
    cluster.autoscaler_writes(3)
    await cluster.reconciled()
    cluster.orphans(ENGINE_POOL, "chat-mixed")
    await cluster.reconciled()
    assert cluster.engines() == 3
    assert cluster.api.objects[ENGINE_POOL, "chat-mixed"]["spec"]["replicas"] == 3


async def test_a_pool_deleted_amid_a_roll_out_keeps_what_the_collector_has_not_reached() -> None:
    cluster, former = await amid_a_roll_out()
    cluster.api.delete(ENGINE_POOL, "chat-mixed")
    await cluster.reconciled()
    cluster.collects_garbage()
    await goes_on(cluster, former)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("same", [True, False], ids=["the same spec", "another spec"])
async def test_a_service_orphaned_amid_a_roll_out_and_made_again(
    mode: Manifest, same: bool
) -> None:
    cluster, former = await amid_a_roll_out(**mode)
    spec = cluster.api.objects[INFERENCE_SERVICE, "chat"]["spec"]
    cluster.orphans(INFERENCE_SERVICE, "chat")
    again = service(spec if same else spec | {"engine": {"chunkSize": 128}}, uid="again")
    cluster.api.apply(INFERENCE_SERVICE, again | {"status": {}})
    await goes_on(cluster, former)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("manages_fields", [True, False])
async def test_a_backup_of_a_roll_out_restored_without_owners(
    mode: Manifest, manages_fields: bool
) -> None:
    cluster, former = await amid_a_roll_out(**mode)
    cluster.is_restored(manages_fields)
    cluster.operator_starts()
    await goes_on(cluster, former)


@pytest.mark.parametrize("manages_fields", [True, False])
async def test_a_backup_of_a_change_of_mode_restored_without_owners(manages_fields: bool) -> None:
    cluster = await running(**SPEC)
    former = engines(cluster)
    cluster.is_down = lambda name: is_engine(name) and name not in former
    await cluster.edited(prefill={})
    assert cluster.names(ENGINE_POOL) == ["chat-decode", "chat-mixed", "chat-prefill"]
    cluster.is_restored(manages_fields)
    cluster.operator_starts()
    await cluster.reconciled()
    assert set(former) < set(engines(cluster))
    assert unowned(cluster) == []
    cluster.is_down = lambda name: False
    await cluster.reconciled()
    cluster.collects_garbage()
    await cluster.reconciled()
    assert updated(cluster) == ("True", "AllReady")
    assert not set(former) & set(engines(cluster))
    leaves_nothing(cluster)


async def test_a_deployment_without_owner_of_another_mode_goes() -> None:
    cluster = await running(**SPEC)
    (former,) = engines(cluster)
    left = cluster.api.objects[DEPLOYMENT, former]
    await cluster.edited(prefill={})
    cluster.collects_garbage()
    metadata = {k: v for k, v in left["metadata"].items() if k != "ownerReferences"}
    cluster.api._store(DEPLOYMENT, {"metadata": {}}, left, metadata)
    await cluster.reconciled()
    assert former not in engines(cluster)
    assert updated(cluster) == ("True", "AllReady")


async def test_at_rest_everything_gets_its_owner_back_and_no_engine_changes() -> None:
    cluster = await running(**SPEC)
    for size in (64, 128, 256):
        await cluster.edited(engine={"chunkSize": size})
    assert len(cluster.names(CONTROLLER_REVISION)) > 1
    before, key = cluster.templates, cluster.api.objects[SECRET, "chat-handover"]["stringData"]
    cluster.is_restored()
    cluster.operator_starts()
    await cluster.reconciled()
    assert unowned(cluster) == []
    assert cluster.templates == before
    assert cluster.api.objects[SECRET, "chat-handover"]["stringData"] == key
    writes = len(cluster.api.writes)
    await cluster.reconciled()
    assert len(cluster.api.writes) == writes
    leaves_nothing(cluster)


async def test_what_another_release_has_made_gets_its_owner_back_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await running(**SPEC)
    cluster.api.objects = copy.deepcopy(cluster.api.objects)  # what is changed next is shared
    before = cluster.templates
    monkeypatch.setitem(POD_SECURITY, "fsGroup", 1000)
    cluster.orphans(ENGINE_POOL, "chat-mixed")
    cluster.is_restored()
    cluster.operator_starts()
    await cluster.reconciled()
    assert condition(cluster.status, UPGRADE_AVAILABLE)["status"] == "True"
    assert cluster.templates == before
    assert unowned(cluster) == []
    leaves_nothing(cluster)


async def test_a_secret_that_may_not_be_taken_over_keeps_nothing_else_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where ownerReferences are only for who may delete the object."""
    cluster = await running(**SPEC)
    cluster.is_restored()
    send = cluster.api.send

    async def refuses(request: Request) -> Response:
        if request.path.endswith("/secrets/chat-handover"):
            return Response(403, {"reason": "Forbidden", "message": "secrets are taboo"})
        return await send(request)

    monkeypatch.setattr(cluster.api, "send", refuses)
    cluster.operator_starts()
    await cluster.reconciled()
    assert updated(cluster) == ("True", "AllReady")
    assert unowned(cluster) == ["Secret chat-handover"]
    assert "secret not taken over" in caplog.messages


async def test_while_paused_what_has_no_owner_is_named() -> None:
    cluster, former = await amid_a_roll_out()
    cluster.is_down = lambda name: False
    cluster.orphans(ENGINE_POOL, "chat-mixed")
    await cluster.edited(paused=True)
    found = condition(cluster.status, UPDATED)
    assert found["status"] == "False"
    assert unowned(cluster) != []
    await cluster.edited(paused=False)
    assert unowned(cluster) == []
    assert not set(former) & set(engines(cluster))


def with_controller(kind: str, name: str, uid: str = "theirs") -> dict[str, Any]:
    version = labels.API_VERSION if kind == INFERENCE_SERVICE.kind else "argoproj.io/v1alpha1"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


@pytest.mark.parametrize("owner", ["Rollout", "InferenceService"])
async def test_engines_of_another_controller_are_named_and_not_touched(owner: str) -> None:
    cluster, (former,) = await amid_a_roll_out()
    other = service({}, name="other", uid="theirs")
    cluster.api.apply(INFERENCE_SERVICE, other | {"status": {}})
    theirs = [with_controller(owner, "other")]
    patch = [{"op": "add", "path": "/metadata/ownerReferences", "value": theirs}]
    cluster.api._patch(DEPLOYMENT, former, patch)
    version = cluster.api.objects[DEPLOYMENT, former]["metadata"]["generation"]
    cluster.is_down = lambda name: False
    await cluster.reconciled()
    after = cluster.api.objects[DEPLOYMENT, former]["metadata"]
    assert (after["ownerReferences"], after["generation"]) == (theirs, version)
    found = condition(cluster.status, UPDATED)
    assert (found["status"], found["reason"]) == ("False", "NotOwned")
    assert former in found["message"]
    assert "other" in found["message"]


async def test_the_pods_of_a_deployment_that_was_orphaned_are_named() -> None:
    cluster, (former,) = await amid_a_roll_out()
    cluster.is_down = lambda name: False
    cluster.deployed -= {f"{former}-0", f"{former}-1"}
    cluster.orphans(DEPLOYMENT, former)
    await cluster.reconciled()
    found = condition(cluster.status, UPDATED)
    assert (found["status"], found["reason"]) == ("False", "NotOwned")
    assert f"Pod {former}-0" in found["message"]


@pytest.mark.parametrize(
    ("kind", "name", "marks"),
    [
        (CONFIG_MAP, "notes", {}),
        (CONFIG_MAP, "chat-notes", {labels.SERVICE: "chat"}),
        (SERVICE, "team-chat", {labels.SERVICE: "chat", labels.MANAGED_BY: "sluice-operator"}),
        (SECRET, "chat-key", {labels.SERVICE: "chat"}),
    ],
)
async def test_objects_that_people_have_labelled_stay_theirs(
    kind: Kind, name: str, marks: dict[str, str]
) -> None:
    cluster = await running(**SPEC)
    metadata = {"name": name, "namespace": "default", "labels": marks, "managedFields": []}
    made = {"apiVersion": kind.api_version, "kind": kind.kind, "data": {"a": "b"}}
    cluster.api._store(kind, {"metadata": {}}, made, metadata)
    before = cluster.api.objects[kind, name]
    cluster.is_restored()
    theirs = cluster.api.objects[kind, name]["metadata"]["uid"]
    await cluster.reconciled()
    after = cluster.api.objects[kind, name]
    assert after["data"] == before["data"]
    assert after["metadata"]["uid"] == theirs
    assert "ownerReferences" not in after["metadata"]
    assert updated(cluster) == ("True", "AllReady")
