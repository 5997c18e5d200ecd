"""What the operator makes it keeps in order, and nothing outlives the InferenceService."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sluice_contract.cluster import labels

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.stories.pods import PATIENCE_SECONDS, poll
from e2e.stories.service import NAMESPACE, Service, chat_service, own_namespace, unix_seconds
from e2e.stories.test_models_from_a_hub import ANSWER, answer

CHILDREN = ("service/owned", "deployment/owned-router")
CREATED_SECONDS = 30
RESTORED_FIRST = (
    "persistentvolumeclaims", "secrets", "configmaps", "serviceaccounts", "limitranges", "pods",
    "replicasets.apps",
)  # fmt: skip
"""Kinds that Velero restores first; the others follow in alphabetical order."""
NOT_BACKED_UP = {"events", "events.events.k8s.io"}
IN_EVERY_NAMESPACE = {"default", "kube-root-ca.crt"}
"""Names of objects that Kubernetes makes."""
NOT_RESTORED = {
    "uid", "resourceVersion", "generation", "generateName", "creationTimestamp", "ownerReferences",
}  # fmt: skip
"""Metadata that Velero leaves out. It restores managedFields."""


@pytest.fixture(scope="module")
def owned(kubectl: Kubectl) -> Iterator[Service]:
    made = Service(kubectl, "owned")
    yield made
    made.delete()


@pytest.fixture
def service(owned: Service) -> Service:
    """A Ready service: the one of the story before, unless that story has deleted it."""
    owned.apply(chat_service("owned"))
    owned.wait_for("Updated", "True")
    return owned


def scale_operator(kubectl: Kubectl, replicas: int) -> None:
    deployment = "deployment/sluice-operator"
    kubectl.run("scale", deployment, "-n", OPERATOR_NAMESPACE, f"--replicas={replicas}")
    kubectl.run("rollout", "status", deployment, "-n", OPERATOR_NAMESPACE, "--timeout=120s")


def test_a_deleted_child_comes_back(kubectl: Kubectl, service: Service) -> None:
    before = [child for child in service.children() if not child.startswith("pod/")]
    deleted = time.time()
    kubectl.run("delete", *CHILDREN, "-n", NAMESPACE)
    for child in CHILDREN:
        kubectl.run("wait", "--for=create", child, "-n", NAMESPACE, "--timeout=120s")
        created = kubectl.get(child, "-n", NAMESPACE)["metadata"]["creationTimestamp"]
        assert unix_seconds(created) - deleted < CREATED_SECONDS, child
    after = [child for child in service.children() if not child.startswith("pod/")]
    assert after == before
    service.wait_for("Updated", "True")


def test_deleted_while_the_operator_is_down(kubectl: Kubectl, service: Service) -> None:
    scale_operator(kubectl, 0)
    try:
        service.delete()
        service.wait_until_children_are_gone()
        assert service.children() == []
    finally:
        scale_operator(kubectl, 1)


@contextmanager
def cordoned(kubectl: Kubectl) -> Iterator[None]:
    """Lets no node take a new pod for the length of the block."""
    nodes = kubectl.run("get", "nodes", "-o", "name").split()
    kubectl.run("cordon", *nodes)
    try:
        yield
    finally:
        kubectl.run("uncordon", *nodes)


def backup(kubectl: Kubectl, namespace: str) -> list[dict[str, Any]]:
    """All objects of the namespace, in the order in which they are restored."""
    words = ("api-resources", "--namespaced", "--verbs=list,create", "-o", "name")
    kinds = set(kubectl.run(*words).split()) - NOT_BACKED_UP
    ordered = [*RESTORED_FIRST, *sorted(kinds - set(RESTORED_FIRST))]
    items = kubectl.get(",".join(ordered), "-n", namespace, "--show-managed-fields")["items"]
    return [item for item in items if item["metadata"]["name"] not in IN_EVERY_NAMESPACE]


def restored(item: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The object as Velero creates it in another namespace."""
    metadata = {k: v for k, v in item["metadata"].items() if k not in NOT_RESTORED}
    marks = metadata.get("labels", {}) | {"velero.io/backup-name": "story"}
    metadata |= {"namespace": namespace, "labels": marks}
    made = {k: v for k, v in item.items() if k != "status"} | {"metadata": metadata}
    if item["kind"] == "Pod":
        made["spec"] = {k: v for k, v in item["spec"].items() if k != "nodeName"}
    if item["kind"] == "Service" and item["spec"].get("clusterIP") != "None":
        made["spec"] = {k: v for k, v in item["spec"].items() if not k.startswith("clusterIP")}
    if item["kind"] == "RoleBinding":
        made["subjects"] = [subject | {"namespace": namespace} for subject in item["subjects"]]
    return made


def restore(kubectl: Kubectl, items: list[dict[str, Any]]) -> None:
    """Creates the objects one after the other. Objects that the operator has made first are left as
    they are."""
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    try:
        kubectl.run("create", "-f", "-", stdin=json.dumps(listing))
    except ClusterError as error:
        for line in str(error).splitlines():
            if "Warning: " not in line and "(AlreadyExists)" not in line:
                raise


def children_of(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Objects that the operator has made, and their pods and ReplicaSets. Endpoints have no
    owners."""
    kinds = ("InferenceService", "Endpoints")
    marked = (item for item in items if labels.SERVICE in item["metadata"].get("labels", {}))
    return [item for item in marked if item["kind"] not in kinds]


def unowned(items: list[dict[str, Any]]) -> list[str]:
    """Children that no object of the namespace controls."""
    uids = {item["metadata"]["uid"] for item in items}
    controlled = {
        child["metadata"]["uid"]
        for child in children_of(items)
        for owner in child["metadata"].get("ownerReferences", ())
        if owner.get("controller") and owner["uid"] in uids
    }
    return names(i for i in children_of(items) if i["metadata"]["uid"] not in controlled)


def names(items: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{item['kind']} {item['metadata']['name']}" for item in items]


def versions(items: list[dict[str, Any]], kind: str) -> set[str]:
    """Revisions of the engines' objects of a kind, without those that are being deleted."""
    return {
        item["metadata"]["labels"][labels.REVISION]
        for item in items
        if item["kind"] == kind and labels.REVISION in item["metadata"].get("labels", {})
        if "deletionTimestamp" not in item["metadata"]
    }


def test_a_copy_that_is_restored_amid_a_roll_out_is_rolled_out_and_leaves_nothing(
    cluster: Cluster, kubectl: Kubectl
) -> None:
    with own_namespace(cluster, "copied") as source, own_namespace(cluster, "copy") as target:
        original, copy = (Service(kubectl, "copied", name) for name in (source, target))
        original.apply(chat_service("copied"))
        original.wait_for("Updated", "True")
        with cordoned(kubectl):
            engine = {"dtype": "float32", "kvPoolTokens": 16384, "chunkSize": 64}
            original.apply(chat_service("copied", engine=engine))
            original.wait_for_reason("Updated", "Unschedulable")
            copied = backup(kubectl, source)
            original.apply(chat_service("copied"))
            original.wait_for("Updated", "True")
        assert len(versions(copied, "Deployment")) == 2, "the roll-out is not half done"
        restore(kubectl, [restored(item, target) for item in copied])
        copy.wait_for("Updated", "True")
        there = backup(kubectl, target)
        assert copy.condition("Updated")["reason"] == "AllReady"
        assert len(versions(there, "Pod")) == len(versions(there, "Deployment")) == 1
        owned = poll(lambda: not unowned(backup(kubectl, target)), PATIENCE_SECONDS)
        assert owned, unowned(backup(kubectl, target))
        assert answer(cluster, copy) == ANSWER
        copy.delete()
        gone = poll(lambda: not backup(kubectl, target), PATIENCE_SECONDS)
        assert gone, names(backup(kubectl, target))
        assert original.condition("Updated")["status"] == "True"
        assert answer(cluster, original) == ANSWER
        original.delete()
