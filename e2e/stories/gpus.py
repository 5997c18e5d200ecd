"""GPUs that a story pretends: the node says that it has them, and so does a test's engine image.

A node may be pretended, too: it has no kubelet, and the story writes the statuses of its pods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE

A100: Final = "NVIDIA-A100-SXM4-40GB"
GPU: Final = "nvidia.com/gpu"
LABELS: Final = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.memory": "40960"}
GPUS_ON_NODE: Final = 4
ENV: Final = [
    {"name": "PRETENDED_PRODUCT", "value": A100},
    {"name": "PRETENDED_MEMORY_MIB", "value": "40960"},
]
"""Environment of engines that say they have these GPUs."""

ROOM: Final = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "64Gi", "pods": "10"}
"""Capacity of a pretended node."""
NOBODY: Final = "192.0.2.1"
"""Address of pods on a pretended node, where nothing answers."""


def patch_node(kubectl: Kubectl, node: str, change: Mapping[str, Any], *words: str) -> None:
    """Applies a merge patch to a node; `words`: arguments of kubectl, such as
    --subresource=status."""
    kubectl.run("patch", "node", node, "--type=merge", "-p", json.dumps(change), *words)


def set_gpus(kubectl: Kubectl, node: str, count: int | None) -> None:
    """Sets the GPUs that a node says it has; None: it reports none."""
    capacity = {GPU: None if count is None else str(count)}
    patch_node(kubectl, node, {"status": {"capacity": capacity}}, "--subresource=status")


@contextmanager
def pretended_node(kubectl: Kubectl, name: str, gpus: int) -> Iterator[None]:
    """A node with GPUs and without a kubelet, ready for the length of the block. After most of a
    minute, Kubernetes may miss its heartbeats."""
    head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": LABELS}}
    kubectl.apply(json.dumps(head))
    try:
        room = ROOM | {GPU: str(gpus)}
        status = {"capacity": room, "allocatable": room, "conditions": [_is_true("Ready")]}
        patch_node(kubectl, name, {"status": status}, "--subresource=status")
        yield
    finally:
        kubectl.run("delete", "node", name)


def make_ready(kubectl: Kubectl, pod: str) -> None:
    """Writes the status that a kubelet would write for a serving engine, of a pod on a pretended
    node."""
    state = {"running": {"startedAt": _now()}}
    engine = {"name": "engine", "ready": True, "started": True, "state": state}
    engine |= {"image": "pretended", "imageID": "pretended", "restartCount": 0}
    conditions = [_is_true("Ready"), _is_true("ContainersReady")]
    status = {"phase": "Running", "podIP": NOBODY, "podIPs": [{"ip": NOBODY}]}
    status |= {"conditions": conditions, "containerStatuses": [engine]}
    patch = json.dumps({"status": status})
    kubectl.run("patch", "pod", pod, "-n", NAMESPACE, "--subresource=status", "-p", patch)


def _is_true(condition: str) -> dict[str, str]:
    times = {"lastTransitionTime": _now()}
    return {"type": condition, "status": "True", "reason": "Pretended", "message": "", **times}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
