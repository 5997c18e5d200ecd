"""InferenceServices to test with, and what the cluster makes of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from sluice_contract.cluster import labels
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import with_applied_fields
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import PoolChildren, plan_pool
from sluice_operator.service.observe import Images, ServiceObserved
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.revisions.revision import Revision, State

IMAGES = Images(
    engine="sluice/engine:test",
    router="sluice/router:test",
    gpu_engine="sluice/engine-cuda:test",
    fetch="sluice/fetch:test",
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SERVICE_UID = "00000000-0000-0000-0000-000000000001"
POOL_UID = "00000000-0000-0000-0000-000000000002"

MINIMAL_SPEC: Manifest = {"model": {"uri": "dummy://tiny"}, "paused": False}

FULL_TEMPLATE: Manifest = {
    "annotations": {"example.com/team": "search"},
    "labels": {"example.com/cost": "search"},
    "schedulerName": "batch",
    "fsGroup": 2000,
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
    ],
    "initContainers": [{"name": "fetch", "image": "fetch:1"}],
    "nodeSelector": {"disk": "fast"},
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 10,
                    "podAffinityTerm": {
                        "topologyKey": "topology.kubernetes.io/zone",
                        "labelSelector": {"matchLabels": {"app": "batch"}},
                    },
                }
            ]
        }
    },
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
    "env": [
        {"name": "PROXY", "value": "off"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ],
    "volumes": [
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "extra", "persistentVolumeClaim": {"claimName": "extra", "readOnly": True}},
    ],
    "volumeMounts": [
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "extra", "mountPath": "/extra", "subPath": "a", "readOnly": True},
    ],
    "sidecars": [
        {
            "name": "exporter",
            "image": "exporter:1",
            "args": ["--once"],
            "ports": [{"name": "stats", "containerPort": 9100}],
            "resources": {"requests": {"cpu": "10m"}},
        }
    ],
}

FULL_SPEC: Manifest = {
    "model": {"uri": "pvc://models/qwen3/8b", "name": "qwen3-8b", "aliases": ["qwen3"]},
    "engine": {
        "dtype": "bfloat16",
        "contextLength": 8192,
        "chunkSize": 1024,
        "pageSize": 32,
        "kvPoolTokens": 65536,
        "mixedChunk": False,
        "image": "registry.example/engine:2",
        "drainSeconds": 60,
        "startupSeconds": 900,
    },
    "router": {
        "replicas": 2,
        "resources": {"requests": {"cpu": "1"}},
        "cors": {"allowedOrigins": ["https://chat.example.com"]},
        "page": False,
        "route": {
            "parentRefs": [{"name": "public", "namespace": "infra", "sectionName": "https"}],
            "hostnames": ["models.example.com"],
            "path": "/team/chat",
            "header": {"name": "x-tier"},
        },
        "inferencePool": {"endpointPickerRef": {"name": "picker", "port": 9002}},
    },
    "rollout": {
        "strategy": "Surge",
        "canary": {
            "steps": [5, 25],
            "minutes": 20,
            "judge": {"errors": True, "slo": True, "marginPoints": 10},
            "onWorse": "Hold",
        },
    },
    "replicas": 3,
    "resources": {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "32Gi"}},
    "template": FULL_TEMPLATE,
}


def pools(**by_role: Manifest) -> Manifest:
    """The part of a spec that has these pools: of role mixed, or of roles prefill and decode."""
    own = by_role.get("mixed") or by_role.get("decode") or {}
    return own | ({"prefill": by_role["prefill"]} if "prefill" in by_role else {})


def service(spec: Manifest | None = None, *, name: str = "chat", **metadata: Any) -> Manifest:
    """An InferenceService as read from an API server."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {
            "name": name, "namespace": "default", "uid": SERVICE_UID, "generation": 1, **metadata,
        },
        "spec": MINIMAL_SPEC | (spec or {}),
    }  # fmt: skip


def service_observed(
    item: Manifest | None = None, children: Iterable[Manifest] = (), **more: Any
) -> ServiceObserved:
    """An observation of a service and what is there of it."""
    return ServiceObserved(item or service(), IMAGES, tuple(children), **more)


def service_plan(spec: Manifest | None = None) -> ServicePlan:
    """The plan of a service that has nothing yet."""
    return plan_service(service_observed(service(spec)))


def written(plan: ServicePlan) -> tuple[Manifest, ...]:
    """All that a plan has written once it was carried out."""
    return (*plan.apply, *([plan.record] if plan.record else ()))


def complete_service(spec: Manifest | None = None, generation: int = 1) -> Manifest:
    """An InferenceService whose status says that all of its spec is there and ready."""
    updated = {"type": "Updated", "status": "True", "reason": "AllReady"}
    status = {"conditions": [updated | {"observedGeneration": generation}]}
    return service(spec, generation=generation) | {"status": status}


def complete_revision(name: str, number: int, spec: Manifest) -> Revision:
    """A revision that was complete once, and of which nothing else is known."""
    data = {"spec": spec, "pinned": spec, "pools": {}, "router": {"image": "r", "file": "{}"}}
    return Revision(name, number, data, State(complete=True))


def pool(spec: Manifest | None = None) -> Manifest:
    """The EnginePool of a service with `spec`, as read."""
    return live(service_plan(spec).pools[0].manifest, uid=POOL_UID)


def pool_with(spec: Manifest, **shares: int) -> Manifest:
    """The EnginePool of a service with `spec`, whose roll-out keeps further revisions."""
    found = pool(spec)
    revisions = [
        *found["spec"]["revisions"],
        *({"name": name, "replicas": count} for name, count in shares.items()),
    ]
    return with_applied_fields(found | {"spec": found["spec"] | {"revisions": revisions}})


def owned_pool(spec: Manifest | None = None) -> Manifest:
    """The EnginePool of a service with `spec`, with what the API server notes of its owner."""
    found = pool(spec)
    owned = {section: _owned(found[section]) for section in ("metadata", "spec")}
    fields = {f"f:{section}": below for section, below in owned.items()}
    entry = {"manager": labels.FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    found["metadata"]["managedFields"] = [entry]
    return found


def edited_pool(spec: Manifest | None = None, **values: Any) -> Manifest:
    """The EnginePool after somebody has set fields of its spec."""
    found = owned_pool(spec)
    (entry,) = found["metadata"]["managedFields"]
    owned = entry["fieldsV1"]["f:spec"]
    taken = {f"f:{name}": owned.pop(f"f:{name}", {}) for name in values}
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": taken}}
    found["metadata"]["managedFields"].append(theirs)
    return found | {"spec": found["spec"] | values}


KEYED: Final = {
    "env": "name", "imagePullSecrets": "name", "initContainers": "name", "revisions": "name",
    "sidecars": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}  # fmt: skip
"""The lists of a pool whose items the API server tells apart, and by what; others are atomic."""


def _owned(value: Any, name: str = "") -> Manifest:
    """The whole of a value as one manager's fields."""
    if isinstance(value, dict):
        return {f"f:{key}": _owned(below, key) for key, below in value.items()}
    if isinstance(value, list) and (key := KEYED.get(name)):
        items = {f"k:{json.dumps({key: item[key]})}": _owned(item) for item in value}
        return {item: {".": {}, **below} for item, below in items.items()}
    return {}


def pool_observed(
    item: Manifest | None = None, children: Iterable[Manifest] = (), pods: Iterable[Manifest] = ()
) -> PoolObserved:
    """An observation of a pool and what is there of it."""
    return PoolObserved(item or pool(), service(), tuple(children), tuple(pods))


def pool_plan(spec: Manifest | None = None) -> PoolChildren:
    """The plan of a pool that has nothing yet."""
    return plan_pool(pool_observed(pool(spec)))


def live(manifest: Manifest, uid: str = "child", generation: int = 1, **status: Any) -> Manifest:
    """A desired object as it is read back after it was applied."""
    metadata = manifest["metadata"] | {"uid": uid, "generation": generation}
    found = manifest | {"metadata": metadata}
    return found | ({"status": status} if status else {})


def complete(deployment: Manifest) -> Manifest:
    """A Deployment of which every replica is available."""
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return live(
        deployment,
        observedGeneration=1,
        **dict.fromkeys(counts, deployment["spec"]["replicas"]),
    )


def pods(deployment: Manifest, count: int | None = None, **status: Any) -> list[Manifest]:
    """Pods of a Deployment; ready unless `status` says otherwise."""
    template, name = deployment["spec"]["template"], deployment["metadata"]["name"]
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{number}", "namespace": "default",
                "labels": template["metadata"]["labels"],
            },
            "spec": template["spec"],
            "status": status or ready,
        }
        for number in range(deployment["spec"]["replicas"] if count is None else count)
    ]  # fmt: skip


def of(manifests: Iterable[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one object of a kind (and name)."""
    found = [
        item
        for item in manifests
        if item["kind"] == kind and name in (None, item["metadata"]["name"])
    ]
    assert len(found) == 1, [item["metadata"]["name"] for item in found]
    return found[0]
