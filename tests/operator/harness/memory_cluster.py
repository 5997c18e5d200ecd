"""Both reconciles over an API server in memory, with Deployments that run the pods they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_operator.api.conditions import Check
from sluice_operator.apply.executor import executor
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    JOB,
    POD,
    SECRET,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
)
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.probes.refused_pods import RefusedPods
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.scaled import Look, PoolPods, ScaledService, Scaling
from sluice_operator.service.observe import ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile

from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.model_pods import ended_pod
from tests.operator.statuses import condition
from tests.operator.virtual_time import FakeClock

KEY: Final = Key(INFERENCE_SERVICE.kind, "default", "chat")


class Autoscaler:
    """What reconciles have told of services."""

    def __init__(self) -> None:
        self.scaled: ScaledService | None = None

    def service_seen(self, key: Key, scaled: ScaledService | None) -> None:
        self.scaled = scaled

    def pool_seen(self, key: Key, role: str, pods: PoolPods) -> None: ...

    def forget(self, key: Key) -> None: ...

    def last_scaling(self, key: Key) -> Scaling | None:
        return Scaling(Check("True", "Enough", "no change")) if self.scaled else None


@dataclass
class Looks:
    """The loop that asks routers about canaries: what they are to have answered."""

    routers: tuple[str, ...] = ()
    """Routers that a reconcile asks for."""
    answers: tuple[Look, ...] = ()
    shares: Mapping[Role, CanaryShare] = field(default_factory=dict)

    def follow(
        self, key: Key, shares: Mapping[Role, CanaryShare], routers: tuple[str, ...] = ()
    ) -> None:
        self.routers = routers if shares else ()
        if self.shares != shares:
            self.shares, self.answers = shares, ()

    def last_looks(self, key: Key) -> tuple[Look, ...]:
        return self.answers


class MemoryCluster:
    """A service in an API server in memory, and operators that are started one after the other."""

    def __init__(self, **spec: Any) -> None:
        self.api = MemoryApi((INFERENCE_SERVICE, *SERVICE_CHILDREN, SECRET, POD))
        self.is_down: Callable[[str], bool] = lambda deployment: False
        """Whether the pods of a Deployment do not become ready."""
        self.is_late: Callable[[str], bool] = lambda deployment: False
        """Whether the deadline of a Deployment has passed."""
        self.restarts: Callable[[str], int] = lambda deployment: 0
        """How often the containers of a Deployment's pods have ended."""
        self.looks = Looks()
        self.deployed: set[str] = set()
        """Pods of Deployments."""
        self.operator_starts()
        self.api.apply(INFERENCE_SERVICE, service(spec) | {"status": {}})

    def operator_starts(self) -> None:
        client, self.clock = ApiClient(self.api, lambda verb, plural: None), FakeClock()
        clock = self.clock
        writes = executor(client, clock, "test", OperatorMetrics().statuses)
        kinds, volumes = OptionalKinds(client, clock), ImageVolumes(client, clock, "default")
        refused = RefusedPods(client, clock)
        observer = ServiceObserver(
            client, IMAGES, Nodes(client), kinds, volumes, refused_pods=refused, looks=self.looks
        )
        self.autoscaler = Autoscaler()
        self.service = ServiceReconcile(observer, writes, clock, self.autoscaler)
        self.pool = PoolReconcile(PoolObserver(client), writes, clock)

    async def reconciled(self) -> None:
        """Until nothing is written, while Deployments get the pods that they ask for."""
        before = -1
        while before != len(self.api.writes):
            running = {pod for name in self.names(DEPLOYMENT) for pod in self.deployment_runs(name)}
            for pod in self.deployed - running:
                self.api.delete(POD, pod)
            self.deployed, before = running, len(self.api.writes)
            await self.service(KEY)
            for pool in self.names(ENGINE_POOL):
                await self.pool(Key(ENGINE_POOL.kind, "default", pool))

    def deployment_runs(self, name: str) -> list[str]:
        """Makes the pods that a Deployment asks for; their names."""
        found = self.api.objects[DEPLOYMENT, name]
        replicas, is_down = found["spec"]["replicas"], self.is_down(name)
        status: Manifest = dict.fromkeys(("replicas", "updatedReplicas"), replicas)
        status |= dict.fromkeys(("readyReplicas", "availableReplicas"), 0 if is_down else replicas)
        status |= {"observedGeneration": found["metadata"]["generation"]}
        if self.is_late(name):
            late = {"type": "Progressing", "status": "False", "message": "no progress"}
            status["conditions"] = [late | {"reason": "ProgressDeadlineExceeded"}]
        ready = {"type": "Ready", "status": "False" if is_down else "True"}
        template = found["spec"]["template"]
        pods = [f"{name}-{number}" for number in range(replicas)]
        for pod in pods:
            metadata = {"name": pod, "labels": template["metadata"]["labels"]}
            running = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]}
            restarts = self.restarts(name)
            running["containerStatuses"] = [{"name": "engine", "restartCount": restarts}]
            body = {"metadata": metadata, "spec": template["spec"], "status": running}
            self.api.apply(POD, body)
        self.api.apply(DEPLOYMENT, {"metadata": {"name": name}, "status": status}, "status")
        return pods

    def orphans(self, kind: Kind, name: str) -> None:
        """Somebody deletes an object with `--cascade=orphan`."""
        uid = self.api.objects[kind, name]["metadata"]["uid"]
        self.api.delete(kind, name)
        for (of, child), item in list(self.api.objects.items()):
            owners = item["metadata"].get("ownerReferences") or []
            left = [owner for owner in owners if owner["uid"] != uid]
            if left != owners:
                body = [{"op": "add", "path": "/metadata/ownerReferences", "value": left or None}]
                self.api._patch(of, child, body)

    def is_restored(self, manages_fields: bool = True) -> None:
        """All objects are made anew by a backup tool, without owners and statuses. It may keep who
        manages their fields."""
        for (kind, name), item in list(self.api.objects.items()):
            self.api.delete(kind, name)
            if kind in (POD, JOB):
                continue
            kept = {"labels", "annotations", "name", "namespace"}
            kept |= {"managedFields"} if manages_fields else set()
            metadata = {key: value for key, value in item["metadata"].items() if key in kept}
            metadata.setdefault("managedFields", [])
            body = {key: value for key, value in item.items() if key not in ("status", "metadata")}
            self.api._store(kind, {"metadata": {}}, {**body, "status": {}}, metadata)

    def collects_garbage(self) -> None:
        """Objects go of which all owners have gone."""
        while gone := [place for place, item in self.api.objects.items() if self._is_garbage(item)]:
            for kind, name in gone:
                self.api.delete(kind, name)

    def _is_garbage(self, item: Manifest) -> bool:
        uids = {each["metadata"]["uid"] for each in self.api.objects.values()}
        owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()]
        return bool(owners) and not uids.intersection(owners)

    async def edited(self, **spec: Any) -> None:
        self.api.edit(INFERENCE_SERVICE, "chat", spec)
        await self.reconciled()

    def autoscaler_writes(self, replicas: int, pool: str = "chat-mixed") -> None:
        body = {"metadata": {"name": pool}, "spec": {"replicas": replicas}}
        self.api.apply(ENGINE_POOL, body, manager=REPLICAS_MANAGER)

    async def job_ends(self, task: str, message: str, code: int = 0) -> None:
        (name,) = self.names(JOB)
        assert f"-{task}-" in name
        pod = ended_pod(self.api.objects[JOB, name], code, message)
        self.api.apply(POD, pod)
        await self.reconciled()

    def names(self, kind: Kind) -> list[str]:
        return sorted(name for of, name in self.api.objects if of is kind)

    def engines(self, pool: str = "chat-mixed") -> int:
        return sum(
            item["spec"]["replicas"]
            for (kind, name), item in self.api.objects.items()
            if kind is DEPLOYMENT and name.startswith(f"{pool}-")
        )

    @property
    def routers(self) -> int:
        """That their Deployment asks for."""
        return int(self.api.objects[DEPLOYMENT, "chat-router"]["spec"]["replicas"])

    @property
    def templates(self) -> dict[str, Manifest]:
        """What pods are made of."""
        return {
            name: self.api.objects[DEPLOYMENT, name]["spec"]["template"]
            for name in self.names(DEPLOYMENT)
        }

    @property
    def status(self) -> Manifest:
        found: Manifest = self.api.objects[INFERENCE_SERVICE, "chat"]["status"]
        return found


_COMPLETE: Final[dict[str, MemoryCluster]] = {}
"""Clusters by the spec of their service."""


async def running(**spec: Any) -> MemoryCluster:
    """A service that is complete: a copy, which takes a tenth of the time."""
    if (key := repr(spec)) not in _COMPLETE:
        cluster = MemoryCluster(**spec)
        await cluster.reconciled()
        assert condition(cluster.status, "Updated")["status"] == "True"
        _COMPLETE[key] = cluster
    kinds = (INFERENCE_SERVICE, *SERVICE_CHILDREN, SECRET, POD)
    return deepcopy(_COMPLETE[key], {id(kind): kind for kind in kinds})
