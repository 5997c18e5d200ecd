"""Services on a cluster with GPUs (`make e2e-gpu`): GPUs that a person asks for are detected, sized
and verified by the engines themselves, and answers are as on CPUs. With one pool, and with prefill
apart from decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.provider import Cluster
from e2e.first_token import stream_answer
from e2e.install import install_operator
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.on_gpus import GPU, PRODUCT, gpu_nodes
from e2e.reach import reach
from e2e.stories.service import (
    MODEL,
    Service,
    chat_service,
    disaggregated_service,
)
from e2e.up import deliver

pytestmark = pytest.mark.gpu

IMAGES = {
    "engine": "engine-sample",
    "gpu_engine": "engine-cuda-sample",
    "router": "router",
    "operator": "operator",
    "fetch": "fetch",
}
ENGINE = {"dtype": "bfloat16", "kvPoolTokens": 32_768, "drainSeconds": 30}


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> dict[str, str]:
    """Installs the operator with an engine image for GPUs."""
    images = dict(deliver(cluster, IMAGES))
    install_operator(cluster, images)
    return images


@pytest.fixture
def service(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[Service]:
    found = Service(kubectl, request.node.name.replace("_", "-")[-40:].strip("-"))
    yield found
    found.delete()


@pytest.fixture
def node(kubectl: Kubectl) -> dict[str, Any]:
    """A node with the most GPUs."""
    nodes = kubectl.get("nodes")["items"]
    counts = gpu_nodes(nodes)
    best = max(counts, key=lambda name: counts[name])
    return next(one for one in nodes if one["metadata"]["name"] == best)


def on_gpus(manifest: dict[str, Any]) -> dict[str, Any]:
    """`manifest` with a GPU for each engine."""
    spec = manifest["spec"]
    spec["accelerator"] = {"count": 1}
    spec["engine"] = {**spec["engine"], **ENGINE}
    return manifest


def answers(cluster: Cluster, service: Service, length: int) -> None:
    prompt, expected = make_prompt("copy", length, seed=21)
    with reach(cluster, service.namespace, service.name) as url:
        answer = "".join(stream_answer(url, MODEL, prompt.rstrip(), len(expected)))
    assert answer.startswith(expected[: len(expected) // 2])


def verified(service: Service, node: dict[str, Any], roles: tuple[str, ...]) -> None:
    """Asserts that the product is the node's, by its label and by the engines' driver."""
    service.wait_for("Ready", "True")
    found = service.wait_for_reason("AcceleratorVerified", "ReportedByEngines")
    assert found["status"] == "True"
    product = node["metadata"].get("labels", {}).get(PRODUCT)
    status = service.get()["status"]
    for role in roles:
        if product is not None:
            assert status["pools"][role]["accelerator"] == f"1 x {product}"
            assert status["resolved"][role]["chunkSize"]["source"] in ("Product", "Memory")


def test_one_pool_on_gpus(
    cluster: Cluster, kubectl: Kubectl, installed: dict[str, str], node: dict[str, Any],
    service: Service,
) -> None:  # fmt: skip
    service.apply(on_gpus(chat_service(service.name)))
    verified(service, node, ("mixed",))
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role=mixed"
    (pod,) = kubectl.get("pods", "-n", service.namespace, "-l", selector)["items"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == installed["gpu_engine"]
    assert container["resources"]["limits"][GPU] == "1"
    answers(cluster, service, 64)
    answers(cluster, service, 600)


def test_prefill_apart_from_decode_on_gpus(
    cluster: Cluster, installed: dict[str, str], node: dict[str, Any], kubectl: Kubectl,
    service: Service,
) -> None:  # fmt: skip
    counts = gpu_nodes(kubectl.get("nodes")["items"])
    if sum(counts.values()) < 2:
        pytest.skip("two engines need two GPUs")
    service.apply(on_gpus(disaggregated_service(service.name, 1, 1)))
    verified(service, node, ("prefill", "decode"))
    answers(cluster, service, 64)
    answers(cluster, service, 600)
