"""An API server in memory whose Deployments run pods, and what its routers find.

Garbage collection, the Deployment controller and kubelets in one; no time passes in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from operator import and_
from typing import Any

from sluice_contract.cluster import labels
from sluice_operator.conditions.pods import is_draining, is_finished, is_ready
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    POOL_CHILDREN,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
    controller_uid,
)
from sluice_operator.service.rollout.pairing import fingerprint_of_deployment

from tests.operator.harness.memory_api import MemoryApi

KINDS = tuple(dict.fromkeys((INFERENCE_SERVICE, *SERVICE_CHILDREN, *POOL_CHILDREN, POD)))
NAME = "chat"
BAD = "engine:bad"
"""An image of which no engine becomes ready."""


class PodsInMemory:
    """The cluster of one service."""

    api: MemoryApi
    pods_made = 0

    def controllers(self) -> None:
        """Garbage collection, and Deployments with their pods."""
        while gone := [item for item in self.api.objects.values() if self._is_orphan(item)]:
            for item in gone:
                self.api.delete(self._kind(item), item["metadata"]["name"])
        for item in self.of(DEPLOYMENT):
            self._run(item)

    def _run(self, deployment: Manifest) -> None:
        name, asked = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        template = deployment["spec"]["template"]
        mine = [p for p in self.of(POD) if controller_uid(p) == deployment["metadata"]["uid"]]
        mine = [pod for pod in mine if not (is_draining(pod) or is_finished(pod))]
        new = [pod for pod in mine if pod["spec"] == template["spec"]]
        old = [pod for pod in mine if pod["spec"] != template["spec"]]
        for _ in range(asked - len(new)):
            self.pods_made += 1
            new.append(self._pod(f"{name}-{self.pods_made}", deployment))
        for pod in sorted(new, key=is_ready)[: max(0, len(new) - asked)]:
            self.end(pod)
            new.remove(pod)
        ready = sum(map(is_ready, new))
        for pod in sorted(old, key=is_ready)[: len(old) - max(0, asked - ready)]:
            self.end(pod)
            old.remove(pod)
        counts = {"replicas": len(new) + len(old), "updatedReplicas": len(new)}
        ready += sum(map(is_ready, old))
        whole = ready == asked and not old
        self.told(
            deployment,
            **counts,
            readyReplicas=ready,
            availableReplicas=ready,
            observedGeneration=deployment["metadata"]["generation"],
            **({"conditions": []} if whole else {}),
        )

    def _pod(self, name: str, deployment: Manifest) -> Manifest:
        template, owner = deployment["spec"]["template"], deployment["metadata"]
        reference = {"kind": "Deployment", "apiVersion": "apps/v1", "controller": True}
        metadata = {
            "name": name,
            "namespace": "default",
            "labels": template["metadata"]["labels"],
            "ownerReferences": [reference | {"name": owner["name"], "uid": owner["uid"]}],
        }
        body = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        pod = self.api.apply(POD, body)
        if labels.ROUTER_ROLE in name:
            self.get_ready(pod)
        return pod

    def end(self, pod: Manifest) -> None:
        """A pod that its Deployment does not want any more."""
        self.api.delete(POD, pod["metadata"]["name"])

    def get_ready(self, pod: Manifest) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        self.api.objects[POD, pod["metadata"]["name"]]["status"] = {
            "phase": "Running",
            "conditions": conditions,
        }

    def told(self, item: Manifest, **status: Any) -> None:
        live = self.api.objects[DEPLOYMENT, item["metadata"]["name"]]
        live["status"] = (live.get("status") or {}) | status

    def of(self, kind: Kind) -> list[Manifest]:
        return [item for (of, _), item in sorted(self.api.objects.items(), key=_key) if of == kind]

    def _is_orphan(self, item: Manifest) -> bool:
        there = {each["metadata"]["uid"] for each in self.api.objects.values()}
        owner = controller_uid(item)
        return owner is not None and owner not in there

    def _kind(self, item: Manifest) -> Kind:
        return next(kind for kind in KINDS if kind.kind == item["kind"])

    def answers(self, pods: list[Manifest] | None = None) -> bool:
        """Whether a router runs that finds engines which work together, one of each pool."""
        found = [pod for pod in (self.of(POD) if pods is None else pods) if is_ready(pod)]
        return any(self._finds_engines(pod, found) for pod in found if role_of(pod) == "router")

    def _finds_engines(self, router: Manifest, pods: list[Manifest]) -> bool:
        return self.usable(router, pods) > 0

    def usable(self, router: Manifest, pods: list[Manifest]) -> int:
        """Engines of the smaller pool that a router finds and that have a partner in the other."""
        deployments = {item["metadata"]["uid"]: item for item in self.of(DEPLOYMENT)}
        children = tuple(self.of(CONFIG_MAP))
        prints: list[Counter[str]] = []
        for role in self._followed(router):
            engines = (pod for pod in pods if role_of(pod) == role)
            owners = (uid for pod in engines if (uid := controller_uid(pod)) in deployments)
            counts = Counter(fingerprint_of_deployment(deployments[o], children) for o in owners)
            prints.append(counts)
        return sum(reduce(and_, prints).values()) if prints else 0

    def _followed(self, router: Manifest) -> Iterator[str]:
        """The roles in the configuration that a router mounts."""
        for volume in router["spec"]["volumes"]:
            name = (volume.get("configMap") or {}).get("name", "")
            if (file := self.api.objects.get((CONFIG_MAP, name))) and "router.json" in file["data"]:
                yield from json.loads(file["data"]["router.json"])["discovery"]["roles"]


def _key(each: tuple[tuple[Kind, str], Manifest]) -> tuple[str, str]:
    (kind, name), _ = each
    return kind.plural, name


def is_bad(pod: Manifest) -> bool:
    return image_of(pod) == BAD


def image_of(pod: Manifest) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def role_of(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"][labels.ROLE])
