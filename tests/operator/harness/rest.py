"""What the operator has made of a namespace: whether it would write more, and what is there."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import Any, Final

from sluice_contract.cluster.labels import Role
from sluice_operator.apply.events import EVENT
from sluice_operator.apply.executor import executor
from sluice_operator.apply.status import COUNTS_SECONDS
from sluice_operator.clock import SystemClock
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response, Transport
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    SERVICE_CHILDREN,
    Manifest,
)
from sluice_operator.manifests.metadata import DESIRED_HASH
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.network_isolation import NetworkIsolation, connect_over_tcp
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.service.observe import Images, Installation, ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile

from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import IMAGES
from tests.operator.harness.scenery import DEPLOYMENTS, chat, settled
from tests.patience import PATIENCE_SECONDS

KINDS = (INFERENCE_SERVICE, *SERVICE_CHILDREN)
SERVER_SET = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


class LaterClock(SystemClock):
    """The system's clock, on which no count has to wait any more for its write."""

    def __init__(self) -> None:
        self.passed_seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_seconds


class Reconciler:
    """Both reconciles over one transport, without queue, watches and Lease; a second passes between
    two rounds."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        client, clock = ApiClient(transport, lambda verb, plural: None), LaterClock()
        self._clock = clock
        images = Images(
            IMAGES["SLUICE_ENGINE_IMAGE"],
            IMAGES["SLUICE_ROUTER_IMAGE"],
            IMAGES["SLUICE_GPU_ENGINE_IMAGE"],
            IMAGES["SLUICE_FETCH_IMAGE"],
        )
        self._services = ServiceObserver(
            client,
            images,
            Nodes(client),
            OptionalKinds(client, clock),
            ImageVolumes(client, clock, "default"),
            isolation=NetworkIsolation(connect_over_tcp, clock, in_cluster=False),
        )
        pools = PoolObserver(client)
        self._writes = executor(client, clock, "test", OperatorMetrics().statuses)
        self._pool = PoolReconcile(pools, self._writes, clock)

    async def once(self, namespace: str, name: str = "chat", operator: str | None = None) -> None:
        """Reconciles the service and its pools, each once, in any order, as an operator in the
        namespace `operator` does; None: in the same."""
        installation = Installation(operator_namespace=operator or namespace)
        services = replace(self._services, installation=installation)
        reconciles: dict[str, Reconcile] = {
            INFERENCE_SERVICE.kind: ServiceReconcile(services, self._writes, self._clock),
            ENGINE_POOL.kind: self._pool,
        }
        keys = [
            Key(INFERENCE_SERVICE.kind, namespace, name),
            *(Key(ENGINE_POOL.kind, namespace, f"{name}-{role}") for role in Role),
        ]
        random.Random(namespace).shuffle(keys)
        self._clock.passed_seconds += COUNTS_SECONDS
        for key in keys:
            await reconciles[key.kind](key)


EXISTS: Final = 409
"""Status of the answer to a Secret that is there already."""


class CountingTransport:
    """Passes requests on, and keeps those that write. `refuse`: raises at the first of them. That
    a Secret is there is learned by creating it, which then writes nothing."""

    def __init__(self, inner: Transport, *, refuse: bool = False) -> None:
        self._inner = inner
        self._refuse = refuse
        self.writes: list[Request] = []

    async def send(self, request: Request) -> Response:
        if request.path.endswith("/secrets"):
            found = await self._inner.send(request)
            assert not self._refuse or found.status == EXISTS, f"has made: {request}"
            if found.status != EXISTS:
                self.writes.append(request)
            return found
        if request.method != "GET":
            self.writes.append(request)
            assert not self._refuse, f"would write: {request} {request.body}"
        return await self._inner.send(request)


async def comes_to_rest(
    cluster: Cluster,
    namespace: str,
    name: str = "chat",
    timeout_seconds: float = PATIENCE_SECONDS,
    operator: str | None = None,
) -> None:
    """Returns when a reconcile, by a process without any memory, would write nothing; fails with
    what it would write otherwise. Looks again and again: no event says that nothing will happen.

    Twice in a row: what the operator writes after one kind was looked at and before the other is
    would go unnoticed by a single look."""
    deadline = time.monotonic() + timeout_seconds
    clean = 0
    while clean < 2:
        try:
            await Reconciler(CountingTransport(cluster.transport, refuse=True)).once(
                namespace, name, operator
            )
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            clean = 0
            await asyncio.sleep(0.02)
        else:
            clean += 1


async def chat_at_rest(cluster: Cluster, namespace: str) -> None:
    """A new service, of which the running operator has made everything there is to make."""
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == DEPLOYMENTS)
    await comes_to_rest(cluster, namespace)


async def snapshot(cluster: Cluster, namespace: str) -> dict[str, Manifest]:
    """Every object of the operator's in a namespace, without what differs from run to run."""
    found: dict[str, Manifest] = {}
    for kind in KINDS:
        for name, item in (await cluster.list(kind, namespace)).items():
            found[f"{kind.kind} {name}"] = _comparable(item, namespace)
    return found


async def until_told(cluster: Cluster, namespace: str, reason: str) -> None:
    """Returns once there is an event with `reason`; it comes after the status that it is about."""
    await cluster.until(
        EVENT, namespace, lambda told: any(e["reason"] == reason for e in told.values())
    )


async def event_reasons(cluster: Cluster, namespace: str) -> list[str]:
    """The reasons of all events of a namespace."""
    events = (await cluster.list(EVENT, namespace)).values()
    return sorted(event["reason"] for event in events)


def _comparable(item: Manifest, namespace: str) -> Any:
    metadata = {k: v for k, v in item["metadata"].items() if k not in SERVER_SET}
    entries = item["metadata"].get("managedFields") or ()
    ours = [
        {"subresource": e.get("subresource", ""), "fieldsV1": _without_uids(e["fieldsV1"])}
        for e in entries
        if e["manager"] == "sluice-operator"
    ]
    ours.sort(key=lambda entry: entry["subresource"])
    return _without(namespace, {**item, "metadata": {**metadata, "managedFields": ours}})


def _without_uids(fields: Any) -> Any:
    if isinstance(fields, dict):
        return {
            "k:uid" if key.startswith('k:{"uid"') else key: _without_uids(below)
            for key, below in fields.items()
        }
    return fields


def _without(namespace: str, value: Any) -> Any:
    """`value` without times, uids, cluster addresses, and with one name for all namespaces."""
    changing = ("uid", "lastTransitionTime", "clusterIP", "clusterIPs", DESIRED_HASH)
    if isinstance(value, dict):
        return {k: _without(namespace, v) for k, v in value.items() if k not in changing}
    if isinstance(value, list):
        return [_without(namespace, item) for item in value]
    return value.replace(namespace, "NAMESPACE") if isinstance(value, str) else value
