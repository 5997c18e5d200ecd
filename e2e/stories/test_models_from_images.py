"""A model that is a container image: pulled by the cluster, mounted or copied, and served like any
other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.provider import Cluster
from e2e.first_token import show_answer
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.old_node import old_node
from e2e.stories.pods import poll
from e2e.stories.service import KIND, MODEL, NAMESPACE, Service, chat_service
from e2e.up import deliver

RESTART_SECONDS = 60
NOTICE_SECONDS = 120
MOUNTED, COPIED = "link-model", "copy-model"


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> str:
    """An image with the small model and nothing else: no shell, no library, no user."""
    return deliver(cluster, {"model": "model-sample"})["model"]


@pytest.fixture
def service(kubectl: Kubectl) -> Iterator[Service]:
    made = Service(kubectl, "imaged")
    yield made
    made.delete()
    made.wait_until_children_are_gone()


def serve(service: Service, image: str, **spec: Any) -> None:
    model = {"uri": f"oci://{image}", "name": MODEL}
    service.apply(chat_service(service.name, model=model, **spec))


def bringing(kubectl: Kubectl, service: Service, *names: str) -> dict[str, Any]:
    """Status of the init container of one of these names."""
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role=mixed"
    pods = kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
    statuses = [one for pod in pods for one in pod["status"].get("initContainerStatuses", [])]
    return next((dict(found) for found in statuses if found["name"] in names), {})


def assert_brought_and_served(
    cluster: Cluster, kubectl: Kubectl, service: Service, *ways: str
) -> None:
    message = bringing(kubectl, service, *ways)["state"]["terminated"]["message"]
    assert "ModelCopied" in message
    assert "/models of the image" in message
    with reach(cluster, NAMESPACE, service.name) as url:
        assert show_answer(url, MODEL, "copy: Kubernetes in, tokens out.", 40)


def test_from_apply_to_an_answer_mounted_and_after_an_old_node_has_joined_copied(
    cluster: Cluster, kubectl: Kubectl, service: Service, image: str
) -> None:
    serve(service, image)
    service.wait_for("Updated", "True")
    if cluster.kind != "bare":  # whose API server and nodes may be too old
        assert_brought_and_served(cluster, kubectl, service, MOUNTED, COPIED)
        return
    assert_brought_and_served(cluster, kubectl, service, MOUNTED)
    looked = iter(range(10**6))

    def is_noticed() -> bool:
        """A node without devices concerns no service, so the operator looks at the next change."""
        words = (f"looked={next(looked)}", "--overwrite", "-n", NAMESPACE)
        kubectl.run("annotate", KIND, service.name, *words)
        return service.condition("UpgradeAvailable").get("status") == "True"

    def is_copied() -> bool:
        return "terminated" in bringing(kubectl, service, COPIED).get("state", {})

    with old_node(kubectl):
        assert poll(is_noticed, NOTICE_SECONDS), service.condition("UpgradeAvailable")
        assert not bringing(kubectl, service, COPIED), "what was chosen stays"
        serve(service, image, rollout={"upgrade": "copied"})
        assert poll(is_copied, NOTICE_SECONDS), bringing(kubectl, service, COPIED)
        service.wait_for("Updated", "True")
        assert_brought_and_served(cluster, kubectl, service, COPIED)


def test_an_image_without_a_model_is_named_and_does_not_start_over_and_over(
    kubectl: Kubectl, service: Service, image: str, installed_images: dict[str, str]
) -> None:
    serve(service, installed_images["SLUICE_ROUTER_IMAGE"])
    condition = service.wait_for_reason("Updated", "NotAModel")
    assert "no config.json in /models" in condition["message"]
    assert service.condition("Stalled")["status"] == "True"

    def found() -> dict[str, Any]:
        return bringing(kubectl, service, MOUNTED, COPIED)

    assert poll(lambda: "running" in found().get("state", {}), RESTART_SECONDS), found()
    assert found()["restartCount"] == 1
    assert service.condition("Ready")["reason"] == "NotAModel", "still"
    serve(service, image)
    service.wait_for("Updated", "True")
