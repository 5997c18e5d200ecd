"""A claim for clusters of one node without a provisioner of volumes: a folder of the node that
every user may write to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE

FOLDER: Final = "/var/lib/sluice-volumes"
"""Folder on the node, which is deleted with the node."""
SYSTEM: Final = "kube-system"
"""Namespace in which pods may be root and see the node's files."""
SIZE: Final = "1Gi"
WAIT_SECONDS: Final = 60


@contextmanager
def claimed_volume(
    kubectl: Kubectl, name: str, image: str, namespace: str = NAMESPACE
) -> Iterator[str]:
    """The name of a claim that exists until the block ends. Its folder keeps earlier files. `image`
    has a shell."""
    items = [_volume(name, namespace), _claim(name, namespace), _opener(name, image)]
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    try:
        ended, limit = "jsonpath={.status.phase}=Succeeded", f"--timeout={WAIT_SECONDS}s"
        kubectl.run("wait", f"--for={ended}", f"pod/{name}", "-n", SYSTEM, limit)
        yield name
    finally:
        kubectl.run("delete", "pod", name, "-n", SYSTEM, "--ignore-not-found")
        kubectl.run("delete", "pvc", name, "-n", namespace, "--ignore-not-found")
        kubectl.run("delete", "pv", name, "--ignore-not-found")


def _volume(name: str, namespace: str) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": SIZE},
        "accessModes": ["ReadWriteMany"],
        "hostPath": _folder(name),
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": namespace, "name": name},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": spec,
    }


def _folder(name: str) -> dict[str, Any]:
    return {"path": f"{FOLDER}/{name}", "type": "DirectoryOrCreate"}


def _claim(name: str, namespace: str) -> dict[str, Any]:
    spec = {
        "resources": {"requests": {"storage": SIZE}},
        "accessModes": ["ReadWriteMany"],
        "volumeName": name,
        "storageClassName": "",
    }
    return _namespaced("PersistentVolumeClaim", name, spec, namespace)


def _opener(name: str, image: str) -> dict[str, Any]:
    """The pod that makes the folder writable for everybody; kubelet makes it for root alone."""
    container = {
        "name": "opener",
        "image": image,
        "command": ["chmod", "0777", "/volume"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
    }
    volume = {"name": "volume", "hostPath": _folder(name)}
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    return _namespaced("Pod", name, pod, SYSTEM)


def _namespaced(kind: str, name: str, spec: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
