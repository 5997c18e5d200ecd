"""A person asks for a GPU: what they get is sized for it and verified; what is missing is named.

The GPUs are pretended: the node says that it has them, and a test's engine image says so too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.provider import Cluster
from e2e.first_token import stream_answer
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.gpus import A100, ENV, GPU
from e2e.stories.service import MODEL, Service, chat_service


@pytest.fixture
def service(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service of the story's own."""
    found = Service(kubectl, request.node.name.replace("_", "-")[-40:].strip("-"))
    yield found
    found.delete()


def asked_for(service: Service, product: str | None = A100, **spec: Any) -> dict[str, Any]:
    """The sample with one GPU an engine."""
    accelerator = {"count": 1} | ({"product": product} if product else {})
    engine = spec.pop("engine", {})
    made = chat_service(service.name, accelerator=accelerator, **spec)
    made["spec"]["engine"] |= engine
    return made


def test_a_service_is_sized_for_its_gpu_and_verified(
    cluster: Cluster, kubectl: Kubectl, gpu_node: str, pretended: str, service: Service
) -> None:
    service.apply(asked_for(service, engine={"image": pretended}, template={"env": ENV}))
    service.wait_for("Ready", "True")
    found = service.wait_for_reason("AcceleratorVerified", "ReportedByEngines")
    assert (found["status"], A100 in found["message"]) == ("True", True)
    status = service.get()["status"]
    assert status["pools"]["mixed"]["accelerator"] == f"1 x {A100}"
    sized = {"value": 4096, "source": "Product", "from": "A100-40GB TP1"}
    assert status["resolved"]["mixed"]["chunkSize"] == sized
    (pod,) = engines(kubectl, service)
    assert pod["spec"]["nodeName"] == gpu_node
    assert pod["spec"]["containers"][0]["resources"]["limits"][GPU] == "1"
    with reach(cluster, service.namespace, service.name) as url:
        assert "abc" in "".join(stream_answer(url, MODEL, "copy: abc", 8))


def test_an_engine_without_its_gpu_says_so_and_waits(
    kubectl: Kubectl, gpu_node: str, service: Service
) -> None:
    service.apply(asked_for(service))
    found = service.wait_for_reason("Updated", "AcceleratorMissing")
    assert f"1 x {A100} is asked for" in found["message"]
    assert "leave out accelerator of the InferenceService" in found["message"]
    verified = service.wait_for_reason("AcceleratorVerified", "AcceleratorMissing")
    assert verified["status"] == "False"
    assert service.condition("Stalled")["reason"] == "AcceleratorMissing"


def test_a_gpu_that_no_node_has_is_named(kubectl: Kubectl, gpu_node: str, service: Service) -> None:
    service.apply(asked_for(service, product="NVIDIA-H200"))
    found = service.wait_for_reason("AcceleratorVerified", "NoSuchNode")
    assert found["message"].startswith("Pool mixed: No node has 1 x NVIDIA-H200")
    assert found["message"].endswith(f"nodes have {A100}.")
    assert service.wait_for_reason("Updated", "Unschedulable")["status"] == "False"
    assert service.condition("Ready")["status"] == "False"


def engines(kubectl: Kubectl, service: Service) -> list[dict[str, Any]]:
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role=mixed"
    return list(kubectl.get("pods", "-n", service.namespace, "-l", selector)["items"])
