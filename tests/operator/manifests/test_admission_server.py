"""What the plans make, on a real API server: admitted under the restricted standard, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.cli.preview import preview
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import APPLY, Request
from sluice_operator.kube.kinds import POD, POOL_CHILDREN, SERVICE_CHILDREN, Manifest

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.api.documents import document
from tests.operator.examples import FULL_SPEC, IMAGES
from tests.operator.harness.cluster import Cluster

pytestmark = pytest.mark.apiserver
MANIFESTS = Path(__file__).parents[3] / "manifests"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
ON_A_HUB: Manifest = {"uri": "hf://org/name", "tokenSecretRef": {"name": "hub", "key": "token"}}
SPECS: dict[str, Manifest] = {
    "minimal": {},
    "full": FULL_SPEC,
    "from a hub": {"model": ON_A_HUB},
    "routers with a template": {
        "router": {
            "template": {
                "annotations": {"example.com/a": "b"},
                "labels": {"team": "a"},
                "nodeSelector": {"a": "b"},
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}
                            ]
                        }
                    }
                },
                "volumes": [{"name": "a", "emptyDir": {}}],
                "volumeMounts": [{"name": "a", "mountPath": "/a"}],
                "sidecars": [{"name": "proxy", "image": "proxy:1"}],
                "fsGroup": 1,
            }
        }
    },
    "from a volume": {"model": ON_A_HUB | {"cache": {"size": "1Gi"}}},
}
CLUSTER_OBJECTS = ("priorityClassName", "runtimeClassName")
"""Admission looks these up, and the test's cluster has none of them."""


def _rendered(spec: Manifest, namespace: str) -> tuple[Manifest, ...]:
    body = document(spec)
    body["metadata"]["namespace"] = namespace
    return preview(body, IMAGES).manifests


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
async def test_pods_are_admitted_under_the_restricted_standard(
    plane: ApiServer, cluster: Cluster, namespace: str, spec: Manifest
) -> None:
    plane.kubectl("label", "namespace", namespace, *(f"{k}={v}" for k, v in RESTRICTED.items()))
    for manifest in _rendered(spec, namespace):
        if manifest["kind"] == "Deployment":
            template = manifest["spec"]["template"]
            pod_spec = {k: v for k, v in template["spec"].items() if k not in CLUSTER_OBJECTS}
            name = manifest["metadata"]["name"]
            metadata = template["metadata"] | {"name": name, "namespace": namespace}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
            await cluster.create(POD, pod)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
async def test_no_field_is_unknown_and_none_is_dropped(
    cluster: Cluster, namespace: str, spec: Manifest
) -> None:
    kinds = {kind.kind: kind for kind in (*SERVICE_CHILDREN, *POOL_CHILDREN)}
    rendered = [each for each in _rendered(spec, namespace) if each["kind"] in kinds]
    for manifest in rendered:
        target = path(kinds[manifest["kind"]], namespace, manifest["metadata"]["name"])
        query = {"fieldManager": "test", "fieldValidation": "Strict"}
        made = await cluster.send(Request("PATCH", target, query, manifest, APPLY))
        assert _missing(manifest, made) == []


def _missing(wanted: Any, found: Any, where: str = "") -> list[str]:
    """Paths of `wanted` that `found` does not have."""
    if isinstance(wanted, dict):
        return [
            each
            for key, value in wanted.items()
            for each in (
                _missing(value, found[key], f"{where}.{key}")
                if key in found
                else [f"{where}.{key}"]
            )
        ]
    if isinstance(wanted, list):
        pairs = zip(wanted, found, strict=True)
        return [e for i, (w, f) in enumerate(pairs) for e in _missing(w, f, f"{where}[{i}]")]
    return []


@pytest.mark.parametrize("folder", ["base", "overlays/namespaced", "overlays/admission"])
def test_the_install_is_accepted(plane: ApiServer, folder: str) -> None:
    applied = plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "-o", "json", "-k", str(MANIFESTS / folder)
    )
    assert '"name": "sluice-operator"' in applied


async def test_the_pods_of_admissions_jobs_are_admitted_under_the_restricted_standard(
    cluster: Cluster,
) -> None:
    jobs = yaml.safe_load_all((MANIFESTS / "admission" / "self-signed" / "jobs.yaml").read_text())
    for job in jobs:
        spec = job["spec"].get("jobTemplate", job)["spec"]["template"]["spec"]
        metadata = {"name": job["kind"].lower(), "namespace": "sluice-system"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        await cluster.create(POD, pod)


async def test_the_operators_pod_is_admitted_under_the_restricted_standard(
    plane: ApiServer, cluster: Cluster
) -> None:
    text = plane.kubectl(
        "get", "deployment", "-n", "sluice-system", "sluice-operator", "-o", "json"
    )
    template = json.loads(text)["spec"]["template"]
    metadata = template["metadata"] | {"name": "operator", "namespace": "sluice-system"}
    space = json.loads(plane.kubectl("get", "namespace", "sluice-system", "-o", "json"))
    assert space["metadata"]["labels"].items() >= RESTRICTED.items()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    await cluster.create(POD, pod)
