"""A model that is a container image: pulled and copied by the cluster, served like any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.provider import Cluster
from e2e.first_token import show_completion
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.pods import poll
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service
from e2e.up import deliver

RESTART_SECONDS = 60


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """One with the small model and nothing else: no shell, no library, no user."""
    return deliver(cluster, {"model": "model-sample"})["model"]


@pytest.fixture
def service(kubectl: Kubectl) -> Iterator[Service]:
    made = Service(kubectl, "imaged")
    yield made
    made.delete()
    made.wait_until_children_are_gone()


def serve(service: Service, image: str) -> None:
    model = {"uri": f"oci://{image}", "name": MODEL}
    service.apply(chat_service(service.name, model=model))


def copying(kubectl: Kubectl, service: Service) -> dict[str, Any]:
    """What became of the container that copies, of the engine's pod."""
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role=mixed"
    (pod,) = kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
    statuses = pod["status"].get("initContainerStatuses", [])
    return next((dict(found) for found in statuses if found["name"] == "copy-model"), {})


def test_from_apply_to_an_answer(
    cluster: Cluster, kubectl: Kubectl, service: Service, image: str
) -> None:
    serve(service, image)
    service.wait_for("Updated", "True")
    ended = copying(kubectl, service)["state"]["terminated"]
    assert "ModelCopied" in ended["message"]
    assert "/models of the image" in ended["message"]
    with reach(cluster, NAMESPACE, service.name) as url:
        assert show_completion(url, MODEL, "copy: Kubernetes in, tokens out.\n", 40)


def test_an_image_without_a_model_is_named_and_does_not_start_over_and_over(
    kubectl: Kubectl, service: Service, image: str, installed_images: dict[str, str]
) -> None:
    serve(service, installed_images["SLUICE_ROUTER_IMAGE"])
    condition = service.wait_for_reason("Ready", "NotAModel")
    assert "no config.json in /models" in condition["message"]
    assert service.condition("Stalled")["status"] == "True"

    def waits() -> bool:
        return "running" in copying(kubectl, service).get("state", {})

    assert poll(waits, RESTART_SECONDS), copying(kubectl, service)
    assert copying(kubectl, service)["restartCount"] == 1
    assert service.condition("Ready")["reason"] == "NotAModel", "still"
    serve(service, image)
    service.wait_for("Updated", "True")
