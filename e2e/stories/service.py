"""An InferenceService as a story handles it: apply, wait, look, delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import yaml

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.install import restrict
from e2e.kubectl import Kubectl
from e2e.up import SAMPLE

KIND = "inferenceservices.serving.sluice.dev"
DISAGGREGATED = SAMPLE.with_name("disaggregated.yaml")
NAMESPACE = "default"
MODEL = "sluice-tiny"
WAIT_SECONDS = 240
RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
"""Resources of a small engine."""
SMALL_MODEL = {"uri": f"file:///models/{MODEL}", "name": MODEL}
OWNED_KINDS = (
    "deployments,services,configmaps,secrets,enginepools,serviceaccounts,roles,rolebindings,"
    "poddisruptionbudgets,networkpolicies,controllerrevisions,jobs,persistentvolumeclaims,pods"
)


def chat_service(name: str, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """The sample service under another name, with the small model and `replicas` small engines;
    `spec` replaces whole sections."""
    sample: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    own = {"model": SMALL_MODEL, "replicas": replicas, "resources": RESOURCES}
    metadata = {"name": name, "namespace": NAMESPACE}
    return sample | {"metadata": metadata, "spec": sample["spec"] | own | spec}


def disaggregated_service(name: str, prefill: int, decode: int, **spec: Any) -> dict[str, Any]:
    """The sample of two pools under another name, with these numbers of small engines."""
    sample: dict[str, Any] = yaml.safe_load(DISAGGREGATED.read_text())
    own = {"replicas": decode, "prefill": {"replicas": prefill}, "resources": RESOURCES}
    metadata = {"name": name, "namespace": NAMESPACE}
    return sample | {"metadata": metadata, "spec": sample["spec"] | own | spec}


def scaled_between(least: int, most: int, made: dict[str, Any]) -> dict[str, Any]:
    """The service `made`, in which each pool follows the load between these limits."""
    spec = made["spec"]
    for section in (spec, spec.get("prefill", {})):
        section.pop("replicas", None)
    numbers = {"minReplicas": least, "maxReplicas": most}
    spec["autoscaling"] = spec.get("autoscaling", {}) | numbers
    return made


@contextmanager
def own_namespace(cluster: Cluster, name: str) -> Iterator[str]:
    """A namespace for the length of the block, as restricted as that of other stories."""
    kubectl = Kubectl(cluster)
    kubectl.run("create", "namespace", name)
    try:
        restrict(cluster, name)
        yield name
    finally:
        kubectl.run("delete", "namespace", name)


def unix_seconds(text: str) -> float:
    """Unix seconds of a timestamp in an object."""
    return datetime.fromisoformat(text).timestamp()


class Service:
    """One InferenceService by name."""

    def __init__(self, kubectl: Kubectl, name: str, namespace: str = NAMESPACE) -> None:
        self._kubectl = kubectl
        self.name = name
        self.namespace = namespace

    def apply(self, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"] | {"namespace": self.namespace}
        self._kubectl.apply(json.dumps(manifest | {"metadata": metadata}))

    def get(self) -> dict[str, Any]:
        return self._kubectl.get(KIND, self.name, "-n", self.namespace)

    def condition(self, name: str) -> dict[str, Any]:
        """The condition, or an empty one while there is none."""
        conditions = self.get().get("status", {}).get("conditions", [])
        return next((found for found in conditions if found["type"] == name), {})

    def wait_for(self, condition: str, status: str) -> None:
        """Waits for the condition; raises ClusterError with all conditions if it does not become
        so."""
        self._wait(f"condition={condition}={status}")

    def wait_for_reason(
        self, condition: str, reason: str, seconds: int = WAIT_SECONDS
    ) -> dict[str, Any]:
        """Waits until the condition has this reason; returns the condition."""
        path = f'{{.status.conditions[?(@.type=="{condition}")].reason}}'
        self._wait(f"jsonpath={path}={reason}", seconds)
        return self.condition(condition)

    def recorded_specs(self) -> list[str]:
        """Names of the service's ControllerRevisions that were complete."""
        selector = f"serving.sluice.dev/service={self.name}"
        words = ("controllerrevisions", "-n", self.namespace, "-l", selector)
        there = self._kubectl.get(*words)["items"]
        names = {item["metadata"]["name"]: item["metadata"]["annotations"] for item in there}
        state = "serving.sluice.dev/state"
        return [name for name, notes in names.items() if json.loads(notes[state]).get("complete")]

    def delete(self) -> None:
        self._kubectl.run("delete", KIND, self.name, "-n", self.namespace, "--ignore-not-found")

    def children(self) -> list[str]:
        """kind/name of everything in the namespace that carries the service's label."""
        selector = f"serving.sluice.dev/service={self.name}"
        words = ("get", OWNED_KINDS, "-n", self.namespace, "-l", selector, "-o", "name")
        found = self._kubectl.run(*words)
        return sorted(found.split())

    def wait_until_children_are_gone(self) -> None:
        selector = f"serving.sluice.dev/service={self.name}"
        self._kubectl.run(
            "wait", "--for=delete", OWNED_KINDS, "-n", self.namespace, "-l", selector,
            f"--timeout={WAIT_SECONDS}s", timeout_seconds=WAIT_SECONDS + 10,
        )  # fmt: skip

    def _wait(self, what: str, seconds: int = WAIT_SECONDS) -> None:
        try:
            self._kubectl.run(
                "wait", f"--for={what}", f"{KIND}/{self.name}", "-n", self.namespace,
                f"--timeout={seconds}s", timeout_seconds=seconds + 10,
            )  # fmt: skip
        except ClusterError as error:
            conditions = json.dumps(self.get().get("status", {}).get("conditions"), indent=1)
            raise ClusterError(f"{error}\n{conditions}") from None
