"""Devices by ResourceClaimTemplates (DRA) on a real API server. No device driver runs, and no
scheduler: what it would say is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sluice_operator.kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, Kind, Manifest

from e2e.cluster.controlplane_only import control_plane
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.plane import CONTROLLERS, install
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
TEMPLATE = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
MISSING = "no ResourceClaim of ResourceClaimTemplate two-gpus"
SCHEDULER = "0/1 nodes are available: 1 cannot allocate all claims."


def template(namespace: str) -> Manifest:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    return {
        "apiVersion": TEMPLATE.api_version,
        "kind": TEMPLATE.kind,
        "metadata": {"name": "two-gpus", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def claiming(namespace: str, **accelerator: object) -> Manifest:
    gpus = {"claimTemplate": "two-gpus", **accelerator}
    engine = {"image": "sluice/gpu:1"}
    return chat(namespace, engine=engine, accelerator=gpus)


def updated(reason: str, text: str) -> Callable[[State], bool]:
    def check(services: State) -> bool:
        found = condition(services["chat"], "Updated")
        return found.get("reason") == reason and text in found["message"]

    return check


async def test_engines_claim_devices_and_what_the_scheduler_lacks_is_named(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    start_operator()
    await cluster.create(TEMPLATE, template(namespace))
    await cluster.create(INFERENCE_SERVICE, claiming(namespace, count=2))
    deployments = await cluster.until(
        DEPLOYMENT, namespace, lambda all_: any("router" not in name for name in all_)
    )
    name = next(name for name in deployments if "router" not in name)
    pod = deployments[name]["spec"]["template"]
    (claim,), (engine,) = pod["spec"]["resourceClaims"], pod["spec"]["containers"]
    assert claim["resourceClaimTemplateName"] == "two-gpus"
    own_disk = {"ephemeral-storage": "128Mi"}
    assert engine["resources"] == {"claims": [{"name": claim["name"]}], "requests": own_disk}
    await comes_to_rest(cluster, namespace)
    services = await cluster.list(INFERENCE_SERVICE, namespace)
    assert condition(services["chat"], "AcceleratorVerified")["reason"] == "DevicesOfClaim"

    seen = {"observedGeneration": deployments[name]["metadata"]["generation"]}
    await cluster.patch(DEPLOYMENT, namespace, name, {"status": seen}, "status")
    head = {"apiVersion": POD.api_version, "kind": POD.kind}
    metadata = {"name": f"{name}-0", "namespace": namespace, "labels": pod["metadata"]["labels"]}
    created = await cluster.create(POD, head | {"metadata": metadata, "spec": pod["spec"]})
    assert created["spec"]["resourceClaims"] == [claim], "the API server knows claims"
    await cluster.until(INFERENCE_SERVICE, namespace, updated("Starting", MISSING))

    unplaced = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER,
    }  # fmt: skip
    status = {
        "conditions": [unplaced],
        "resourceClaimStatuses": [{"name": claim["name"], "resourceClaimName": "made"}],
    }
    await cluster.patch(POD, namespace, f"{name}-0", {"status": status}, "status")
    said = SCHEDULER.removesuffix(".")
    told = f"no node takes it, with devices of ResourceClaimTemplate two-gpus ({said})"
    await cluster.until(INFERENCE_SERVICE, namespace, updated("Unschedulable", told))


@pytest.mark.parametrize("accelerator", [{}, {"count": 2, "resourceName": "nvidia.com/gpu"}])
async def test_a_template_without_a_count_or_beside_a_resource_is_refused(
    cluster: Cluster, namespace: str, accelerator: dict[str, object]
) -> None:
    with pytest.raises(AssertionError, match="only beside count, the devices of a claim"):
        await cluster.create(INFERENCE_SERVICE, claiming(namespace, **accelerator))


async def test_an_api_server_that_drops_claims_is_told(tmp_path: Path) -> None:
    with control_plane(CONTROLLERS, feature_gates="DynamicResourceAllocation=false") as plane:
        install(plane)
        place = {"POD_NAME": "operator-0", "POD_NAMESPACE": "default"}
        operator = OperatorProcess(plane.kubeconfig, tmp_path / "log", **place)
        operator.start()
        cluster = Cluster(plane.kubeconfig)
        try:
            await cluster.create(INFERENCE_SERVICE, claiming("default", count=2))
            told = updated("ClaimsNotServed", "drops resourceClaims of pods")
            services = await cluster.until(INFERENCE_SERVICE, "default", told)
            assert condition(services["chat"], "Stalled")["status"] == "True"
        finally:
            operator.kill()
            await cluster.close()
