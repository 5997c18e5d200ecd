"""An API server with two EnginePools and their pods, and ReplicaSets that do as Kubernetes' do:
they take and let go of pods by labels, and remove first what is not ready."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role
from sluice_operator.kube.connection import JSON_PATCH, Request, Response
from sluice_operator.kube.kinds import Manifest

HASHES = {Role.PREFILL: "aaaa", Role.DECODE: "bbbb"}
REVISIONS = {Role.PREFILL: "rev1", Role.DECODE: "rev2"}


class DiedError(Exception):
    """The operator's process."""


def pool_labels(role: Role) -> dict[str, str]:
    return {
        labels.SERVICE: "chat", labels.ROLE: str(role), labels.REVISION: REVISIONS[role],
        "pod-template-hash": HASHES[role],
    }  # fmt: skip


def owner_of(role: Role) -> str:
    return f"chat-{role}-{REVISIONS[role]}-{HASHES[role]}"


def pod(name: str, role: Role, *, ready: bool = True) -> Manifest:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    owner = {"kind": "ReplicaSet", "name": owner_of(role), "uid": "u", "controller": True}
    metadata = {
        "name": name, "namespace": "default", "resourceVersion": "1",
        "labels": pool_labels(role), "ownerReferences": [owner],
    }  # fmt: skip
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": conditions}}


def is_ready(item: Manifest) -> bool:
    return bool(item["status"]["conditions"][0]["status"] == "True")


def _role_of(item: Manifest) -> Role:
    return Role(item["metadata"]["labels"][labels.ROLE])


@dataclass
class TwoPools:
    """`sizes`: replicas of each pool, all ready."""

    sizes: dict[Role, int]
    dies_at_write: int | None = None
    """The write after which the process dies."""
    refuses: dict[str, int] = field(default_factory=dict)
    """Status of the answer to writes whose path ends so."""
    writes: list[Request] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Pods that were ready, and were removed."""
    started: int = 0

    def __post_init__(self) -> None:
        self.pools = {role: self._pool(role, size) for role, size in self.sizes.items()}
        self.pods = {
            f"{role}-{index}": pod(f"{role}-{index}", role)
            for role, size in self.sizes.items()
            for index in range(size)
        }

    @staticmethod
    def _pool(role: Role, size: int) -> Manifest:
        metadata = {"name": f"chat-{role}", "namespace": "default", "generation": 1}
        return {"metadata": metadata, "spec": {"replicas": size}}

    async def send(self, request: Request) -> Response:
        if request.method == "GET":
            return self._read(request)
        name = request.path.rpartition("/")[2]
        if name in self.refuses:
            return Response(self.refuses[name], {"reason": "Refused", "message": "no"})
        self.writes.append(request)
        is_pod = request.content_type == JSON_PATCH
        item = self._patched(request) if is_pod else self._applied(request)
        if len(self.writes) == self.dies_at_write:
            raise DiedError
        return Response(200, item) if item else Response(422, {"reason": "Invalid"})

    def _read(self, request: Request) -> Response:
        name = request.path.rpartition("/")[2]
        if name == "pods":
            return Response(200, {"items": deepcopy(list(self.pods.values())), "metadata": {}})
        found = {each["metadata"]["name"]: each for each in self.pools.values()}.get(name)
        return Response(200, deepcopy(found)) if found else Response(404, {"reason": "NotFound"})

    def _patched(self, request: Request) -> Manifest | None:
        item = self.pods[request.path.rpartition("/")[2]]
        test, *changes = request.body
        if test["value"] != item["metadata"]["resourceVersion"]:
            return None
        for change in changes:
            item["metadata"][change["path"].rpartition("/")[2]] = change["value"]
        item["metadata"]["resourceVersion"] += "1"
        return deepcopy(item)

    def _applied(self, request: Request) -> Manifest:
        """Server-side apply of all that one manager wants."""
        (item,) = (
            p for p in self.pools.values()
            if p["metadata"]["name"] == request.body["metadata"]["name"]
        )  # fmt: skip
        item["metadata"]["annotations"] = request.body["metadata"].get("annotations", {})
        if item["spec"] != request.body["spec"]:
            item["spec"] = request.body["spec"]
            item["metadata"]["generation"] += 1
        return deepcopy(item)

    def control(self) -> None:
        """What ReplicaSets do, until there is nothing more to do."""
        for item in self.pods.values():
            owner = item["metadata"]["ownerReferences"][0]
            owner["name"] = owner_of(_role_of(item))
        for role, found in self.pools.items():
            lacking = found["spec"]["replicas"] - len(self.of(role))
            for _ in range(lacking):
                self.started += 1
                name = f"new-{self.started}"
                self.pods[name] = pod(name, role, ready=False)
            for item in sorted(self.of(role), key=is_ready)[: max(0, -lacking)]:
                del self.pods[item["metadata"]["name"]]
                if is_ready(item):
                    self.ended.append(item["metadata"]["name"])

    def of(self, role: Role) -> list[Manifest]:
        return [item for item in self.pods.values() if _role_of(item) is role]

    def names(self, role: Role) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.of(role))

    def all_ready(self) -> None:
        """Every engine that was started."""
        for item in self.pods.values():
            item["status"]["conditions"][0]["status"] = "True"

    def replicas(self) -> dict[Role, int]:
        return {role: found["spec"]["replicas"] for role, found in self.pools.items()}

    def notes(self) -> Iterator[Any]:
        """Annotations of the pools."""
        return (found["metadata"].get("annotations") or {} for found in self.pools.values())
