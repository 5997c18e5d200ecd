"""An API server in memory: server-side apply as far as the operator uses it, and a watch whose
events wait until a test lets them through.

Knows no schema, no defaults and no admission; owner references delete nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from sluice_contract.cluster.labels import FIELD_MANAGER
from sluice_operator.apply.executor import executor
from sluice_operator.clock import Clock
from sluice_operator.informer.nodes import Nodes
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import JSON_PATCH, Request, Response
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    ENGINE_POOL,
    OPTIONAL_CHILDREN,
    Kind,
    Manifest,
)
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.service.observe import ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile
from sluice_operator.service.revisions.revision import DECISION

from tests.operator.examples import IMAGES

LIST_KEYS = {"env": "name", "volumes": "name", "volumeMounts": "mountPath", "revisions": "name"}
IDENTITY = ("name", "namespace", "uid")


class MemoryApi:
    """Objects of `kinds`, and `late[kind]`: what a watch of each kind has not told yet."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self.objects: dict[tuple[Kind, str], Manifest] = {}
        self.late: dict[Kind, list[tuple[str, Manifest]]] = defaultdict(list)
        self.writes: list[Request] = []
        self.events: list[Manifest] = []
        self.fails_at: str | None = None
        """What of a write's path is answered with 503."""
        self.refuses_pods = ""
        """What is answered to dry runs; empty: that they would be carried out."""
        self._kinds = kinds
        self._version = 0

    async def send(self, request: Request) -> Response:
        """Answers as an API server does."""
        if (found := self._discovered(request.path)) is not None:
            return found
        if request.path.endswith("/nodes"):
            return self._listing([])
        addressed = self._addressed(request.path)
        if addressed is None:
            if request.path.endswith("/events"):
                self.events.append(request.body)
            return Response(201, request.body)
        kind, name, subresource = addressed
        if request.method == "GET":
            return self._read(kind, name, request)
        if "dryRun" in request.query:
            refusal = {"reason": "Forbidden", "message": self.refuses_pods}
            return Response(403, refusal) if self.refuses_pods else Response(201, request.body)
        if self.fails_at is not None and self.fails_at in request.path:
            return Response(503, {"reason": "ServiceUnavailable"})
        if request.method == "POST" and (kind, request.body["metadata"]["name"]) in self.objects:
            return Response(409, {"reason": "AlreadyExists"})
        self.writes.append(request)
        if request.content_type == JSON_PATCH:
            return self._patch(kind, name, request.body)
        if request.method == "DELETE":
            self.delete(kind, name)
            return Response(200, {"metadata": {}})
        data = self.objects.get((kind, name), {}).get("data")
        if kind == CONTROLLER_REVISION and data not in (None, request.body.get("data")):
            return Response(422, {"reason": "Invalid", "message": "data: field is immutable"})
        manager = request.query.get("fieldManager", FIELD_MANAGER)
        return Response(200, self.apply(kind, request.body, subresource, manager))

    def apply(
        self, kind: Kind, body: Manifest, subresource: str = "", manager: str = FIELD_MANAGER
    ) -> Manifest:
        """What becomes of an object when all that `manager` owns of it is `body`. Of the operator
        that is whole sections, but for the replicas and the decision that another manager has."""
        before = self.objects.get((kind, body["metadata"]["name"]), {"metadata": {}})
        if manager != FIELD_MANAGER:
            return self._apply_replicas(kind, before, body, manager)
        metadata = {k: v for k, v in body["metadata"].items() if k not in IDENTITY}
        sections = {k: v for k, v in body.items() if k not in ("apiVersion", "kind", "metadata")}
        owned = {f"f:{name}": _owned(value) for name, value in sections.items()}
        entry = {
            "manager": FIELD_MANAGER,
            "operation": "Apply",
            "subresource": subresource,
            "fieldsV1": owned | ({"f:metadata": _owned(metadata)} if metadata else {}),
        }
        others = before["metadata"].get("managedFields", ())
        kept = [
            each
            for each in others
            if (each["manager"], each["subresource"]) != (FIELD_MANAGER, subresource)
        ]
        if kind == CONTROLLER_REVISION:
            notes = before["metadata"].get("annotations", {})
            decided = {name: note for name, note in notes.items() if name == DECISION}
            body["metadata"]["annotations"] = decided | body["metadata"]["annotations"]
        written = {**before, **sections, "apiVersion": kind.api_version, "kind": kind.kind}
        if kind == ENGINE_POOL and "spec" in sections:
            replicas = {"replicas": before.get("spec", {}).get("replicas", 1)}
            written["spec"] = replicas | written["spec"]
        return self._store(
            kind, before, written, {**body["metadata"], "managedFields": [*kept, entry]}
        )

    def _apply_replicas(
        self, kind: Kind, before: Manifest, body: Manifest, manager: str
    ) -> Manifest:
        """Another manager owns the number of replicas, or nothing."""
        others = before["metadata"]["managedFields"]
        kept = [each for each in others if each["manager"] != manager]
        if "spec" in body:
            fields = {"f:spec": _owned(body["spec"])}
            head = {"manager": manager, "operation": "Apply", "subresource": ""}
            kept.append(head | {"fieldsV1": fields})
        after = before | {"spec": before["spec"] | body.get("spec", {})}
        return self._store(kind, before, after, {"managedFields": kept})

    def _patch(self, kind: Kind, name: str, operations: list[Manifest]) -> Response:
        """A JSON patch of metadata: tests, and fields that are set."""
        if (before := self.objects.get((kind, name))) is None:
            return Response(404, {"reason": "NotFound"})
        metadata = dict(before["metadata"])
        for operation in operations:
            parent: Manifest = {"metadata": metadata}
            *folders, field = map(_unescaped, operation["path"].split("/")[1:])
            for folder in folders:
                parent = parent[folder]
            if operation["op"] == "test" and parent.get(field) != operation["value"]:
                return Response(422, {"reason": "Invalid"})
            parent[field] = operation["value"]
        if metadata["resourceVersion"] != before["metadata"]["resourceVersion"]:
            return Response(409, {"reason": "Conflict"})
        return Response(200, self._store(kind, before, before, metadata))

    def edit(
        self, kind: Kind, name: str, values: Manifest, manager: str = "", section: str = "spec"
    ) -> None:
        """Somebody replaces parts of a section; as `manager` they are owned by nobody else then."""
        before = self.objects[kind, name]
        after = before | {section: before[section] | values}
        self._store(kind, before, after, _taken_over(before, values, manager, section))

    def delete(self, kind: Kind, name: str) -> None:
        """The object is gone."""
        if (gone := self.objects.pop((kind, name), None)) is not None:
            self._version += 1
            metadata = {**gone["metadata"], "resourceVersion": str(self._version)}
            self.late[kind].append(("DELETED", {**gone, "metadata": metadata}))

    def _store(self, kind: Kind, before: Manifest, after: Manifest, metadata: Manifest) -> Manifest:
        self._version += 1
        generation = before["metadata"].get("generation", 0)
        generation += before.get("spec") != after.get("spec")
        kept = {"uid": f"uid-{self._version}", "namespace": "default"} | before["metadata"]
        after = {
            **after,
            "metadata": {
                **kept, **metadata,
                "generation": generation, "resourceVersion": str(self._version),
            },
        }  # fmt: skip
        self.late[kind].append(("MODIFIED" if before["metadata"] else "ADDED", after))
        self.objects[kind, after["metadata"]["name"]] = after
        copied: Manifest = json.loads(json.dumps(after))
        return copied

    def _read(self, kind: Kind, name: str, request: Request) -> Response:
        if name:
            found = self.objects.get((kind, name))
            return Response(200, found) if found else Response(404, {"reason": "NotFound"})
        terms = request.query.get("labelSelector", "").split(",")
        wanted = dict(term.split("=") for term in terms if term)
        items = [item for (of, _), item in sorted_items(self.objects) if of == kind]
        return self._listing(
            [i for i in items if wanted.items() <= i["metadata"].get("labels", {}).items()]
        )

    def _listing(self, items: list[Manifest]) -> Response:
        return Response(200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})

    def _discovered(self, target: str) -> Response | None:
        """What is asked of optional kinds alone: whether they are served, and may be listed."""
        kinds = [kind for kind in OPTIONAL_CHILDREN if kind in self._kinds]
        if any(target == path(kind, None) for kind in kinds):
            return self._listing([])
        if target == "/apis":
            groups = {kind.api_version.partition("/")[0] for kind in kinds}
            return Response(200, {"groups": [{"name": name} for name in groups]})
        served = [kind.plural for kind in kinds if target == f"/apis/{kind.api_version}"]
        resources = [{"name": plural} for plural in served]
        return Response(200, {"resources": resources}) if served else None

    def _addressed(self, target: str) -> tuple[Kind, str, str] | None:
        for kind in self._kinds:
            collection = path(kind, "default")
            if target == collection or target.startswith(f"{collection}/"):
                name, _, subresource = target[len(collection) + 1 :].partition("/")
                return kind, name, subresource
        return None


def reconciles_over(client: ApiClient, clock: Clock) -> tuple[ServiceReconcile, PoolReconcile]:
    """Both reconciles, which read and write through one client."""
    writes = executor(client, clock, "test", OperatorMetrics().statuses)
    kinds, volumes = OptionalKinds(client, clock), ImageVolumes(client, clock, "default")
    services = ServiceObserver(client, IMAGES, Nodes(client), kinds, volumes)
    pools = PoolReconcile(PoolObserver(client), writes, clock)
    return ServiceReconcile(services, writes, clock), pools


def sorted_items(objects: dict[tuple[Kind, str], Manifest]) -> list[Any]:
    """Objects by name, as a listing has them."""
    return sorted(objects.items(), key=lambda each: each[0][1])


def _unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _taken_over(before: Manifest, values: Manifest, manager: str, section: str) -> Manifest:
    """Metadata that say so."""
    if not manager:
        return {}
    entries = json.loads(json.dumps(before["metadata"]["managedFields"]))
    for entry in entries:
        for name in values:
            entry["fieldsV1"].get(f"f:{section}", {}).pop(f"f:{name}", None)
    fields: Manifest = {f"f:{section}": {f"f:{name}": {} for name in values}}
    theirs = {"manager": manager, "operation": "Update", "subresource": ""}
    return {"managedFields": [*entries, theirs | {"fieldsV1": fields}]}


def _owned(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {f"f:{key}": _owned(below, key) for key, below in value.items()}
    if isinstance(value, list) and (key := LIST_KEYS.get(name)):
        return {f"k:{json.dumps({key: item[key]})}": _owned(item) for item in value}
    return {}
