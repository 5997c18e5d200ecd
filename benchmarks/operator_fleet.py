"""Many InferenceServices with their pods on a real API server: Deployment and ReplicaSet
controllers, a scheduler, and KWOK in the place of the kubelets.

Knows no figure; `operator_scale.py` measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice_operator.kube.client import path
from sluice_operator.kube.connection import Request
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, NODE, Kind, Manifest

from e2e.cluster.bare.controlplane import flags, scheduler_argv
from e2e.cluster.controlplane_only import ADDRESS, ControlPlane
from e2e.cluster.daemon import Daemon
from e2e.cluster.toolchain.binaries import ensure_binaries
from e2e.cluster.toolchain.kwok import ensure_kwok
from tests.operator.harness.cluster import MERGE_PATCH, NAMESPACE, Cluster
from tests.operator.harness.scenery import chat

CONTROLLERS = ("deployment-controller", "replicaset-controller", "garbage-collector-controller")
SERVICES_PER_NAMESPACE = 20
ROUTERS = 1
NODES = 10
CAPACITY = {"cpu": "100k", "memory": "1Pi", "pods": "1M", "ephemeral-storage": "1Pi"}
"""Room on one node, which is never what a pod waits for."""
AT_ONCE = 8
"""Our requests in flight: enough that the client is not the bottleneck."""
POLL_SECONDS = 3.0


@dataclass(frozen=True)
class Size:
    """How large the fleet is."""

    services: int
    pods_per_service: int
    """Pods of the router and of the engines."""

    @property
    def engines(self) -> int:
        return self.pods_per_service - ROUTERS

    def places(self) -> Iterator[tuple[str, str]]:
        """Namespace and name of each service."""
        for number in range(self.services):
            yield f"scale-{number // SERVICES_PER_NAMESPACE}", f"chat-{number}"


@contextmanager
def fake_kubelets(plane: ControlPlane, directory: Path) -> Iterator[None]:
    """A scheduler, and KWOK for every node, until the `with` block ends."""
    scheduler = scheduler_argv(
        ensure_binaries().program("kube-scheduler"), plane.kubeconfig, ADDRESS
    )
    kwok = flags({"kubeconfig": str(plane.kubeconfig), "manage-all-nodes": "true"})
    daemons = (
        Daemon("kube-scheduler", [*scheduler, "--secure-port=0"], directory / "scheduler.log"),
        Daemon("kwok", [ensure_kwok(), *kwok], directory / "kwok.log"),
    )
    try:
        for daemon in daemons:
            daemon.start()
        yield
    finally:
        for daemon in daemons:
            daemon.kill()


async def populate(cluster: Cluster, size: Size) -> None:
    """Creates nodes, namespaces and services, as far as they are not there yet."""
    await in_parallel(lambda number: _node(cluster, f"node-{number}"), range(NODES))
    namespaces = sorted({namespace for namespace, _ in size.places()})
    await in_parallel(lambda name: _create(cluster, NAMESPACE, _namespace(name)), namespaces)
    services = [
        chat(*place, replicas=size.engines, router={"replicas": ROUTERS}) for place in size.places()
    ]
    await in_parallel(lambda one: _create(cluster, INFERENCE_SERVICE, one), services)


async def until_ready(cluster: Cluster, size: Size, patience_seconds: float) -> None:
    """Returns once every engine of every pool is ready."""
    async with asyncio.timeout(patience_seconds):
        while True:
            pools = await listed(cluster, ENGINE_POOL)
            ready = [(pool.get("status") or {}).get("readyReplicas", 0) for pool in pools]
            if sum(ready) >= size.services * size.engines:
                return
            await asyncio.sleep(POLL_SECONDS)


async def scale(cluster: Cluster, place: tuple[str, str], engines: int) -> None:
    """Asks for another number of engines."""
    body = {"spec": {"replicas": engines}}
    await cluster.patch(INFERENCE_SERVICE, *place, body)


async def listed(cluster: Cluster, kind: Kind) -> list[Manifest]:
    """Every object of a kind, in all namespaces."""
    found = await cluster.send(Request("GET", path(kind, None)))
    return list(found["items"])


async def in_parallel(work: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> None:
    """`work` on each of `items`, `AT_ONCE` at a time."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _create(cluster: Cluster, kind: Kind, manifest: Manifest) -> None:
    namespace = manifest["metadata"].get("namespace")
    answer = await cluster.try_send(Request("POST", path(kind, namespace), body=manifest))
    assert answer.status in (201, 409), answer.body


async def _node(cluster: Cluster, name: str) -> None:
    """Creates a node without the taint that the API server gives to new ones. KWOK keeps its
    capacity."""
    head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    status = {"capacity": CAPACITY, "allocatable": CAPACITY}
    await _create(cluster, NODE, {**head, "status": status})
    body: Mapping[str, Any] = {"spec": {"taints": None}}
    await cluster.send(Request("PATCH", path(NODE, None, name), {}, body, MERGE_PATCH))


def _namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
