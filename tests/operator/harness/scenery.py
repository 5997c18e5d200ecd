"""What stands around the operator in these tests: a service to begin with, and the parts of
Kubernetes that are not there (Deployment controller, kubelet), played by hand.
"""

from __future__ import annotations

from typing import Any

from sluice_contract.cluster import labels
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    Manifest,
)

from tests.operator.harness.cluster import Cluster, State, condition

DEPLOYMENTS = 2


def chat(namespace: str, name: str = "chat", **spec: Any) -> Manifest:
    """An InferenceService that this version carries out."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"uri": "dummy://qwen3-tiny"}, **spec},
    }


async def chat_that_serves(cluster: Cluster, namespace: str) -> Manifest:
    """A new service, once the running operator says that it is Ready, and has recorded its spec."""
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await play_controllers(cluster, namespace)
    service = (await cluster.until(INFERENCE_SERVICE, namespace, is_ready()))["chat"]
    await until_recorded(cluster, namespace)
    return service


async def until_recorded(cluster: Cluster, namespace: str) -> None:
    """Returns once a spec that was complete is in the history. That takes another reconcile after
    the status has said so; an edit before it leaves the spec out."""
    await cluster.until(CONTROLLER_REVISION, namespace, _is_recorded)


def _is_recorded(found: dict[str, Manifest]) -> bool:
    """Whether a revision is noted as complete, which is written last."""
    return any('"complete":true' in str(item["metadata"]) for item in found.values())


async def play_controllers(
    cluster: Cluster,
    namespace: str,
    deployments: int = DEPLOYMENTS,
    router_address: str | None = None,
) -> None:
    """Routers' and engines' Deployments get their pods, all ready, and say so. One that has them
    already is left alone: the operator may be about to remove it. `router_address`: of the routers'
    pods."""
    found = await cluster.until(DEPLOYMENT, namespace, lambda each: len(each) >= deployments)
    for deployment in found.values():
        metadata, spec = deployment["metadata"], deployment["spec"]
        replicas = spec["replicas"]
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status = dict.fromkeys(counts, replicas) | {"observedGeneration": metadata["generation"]}
        if status.items() <= deployment["status"].items():
            continue
        for number in range(replicas):
            await _run_pod(cluster, deployment, f"{metadata['name']}-{number}", router_address)
        await cluster.patch(DEPLOYMENT, namespace, metadata["name"], {"status": status}, "status")


async def run_pods(cluster: Cluster, namespace: str, deployment: str) -> None:
    """All pods of a Deployment, ready."""
    found = (await cluster.list(DEPLOYMENT, namespace))[deployment]
    for number in range(found["spec"]["replicas"]):
        await _run_pod(cluster, found, f"{deployment}-{number}", None)


async def _run_pod(cluster: Cluster, deployment: Manifest, name: str, address: str | None) -> None:
    namespace = deployment["metadata"]["namespace"]
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": template["metadata"]["labels"],
            # Of no ReplicaSet, as there is none.
            "ownerReferences": [
                {
                    "apiVersion": DEPLOYMENT.api_version,
                    "kind": DEPLOYMENT.kind,
                    "name": deployment["metadata"]["name"],
                    "uid": deployment["metadata"]["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": template["spec"],
    }
    if name not in await cluster.list(POD, namespace):
        await cluster.create(POD, pod)
    ready = {"type": "Ready", "status": "True"}
    status: Manifest = {"phase": "Running", "conditions": [ready]}
    if address is not None and name.startswith("chat-router"):
        status["podIP"] = address
    await cluster.patch(POD, namespace, name, {"status": status}, "status")


def settled(name: str = "chat") -> Any:
    """Whether the status of the service is about its current spec."""

    def check(services: State) -> bool:
        service = services.get(name)
        return service is not None and _generation_seen(service)

    return check


def is_ready(name: str = "chat") -> Any:
    """Whether the service serves, and as its current spec asks."""

    def check(services: State) -> bool:
        service = services[name]
        told = (condition(service, kind).get("status") for kind in ("Ready", "Updated"))
        return _generation_seen(service) and set(told) == {"True"}

    return check


def _generation_seen(service: Manifest) -> bool:
    seen = service.get("status", {}).get("observedGeneration")
    return bool(seen == service["metadata"]["generation"])
