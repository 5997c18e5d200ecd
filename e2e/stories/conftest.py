"""One cluster with this checkout's images and operator, for all stories; one service to talk to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster.choose import choose_cluster, start_cluster
from e2e.cluster.provider import Cluster
from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.install import install_operator, restrict
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.gpus import GPUS_ON_NODE, LABELS, patch_node, set_gpus
from e2e.stories.hub import Hub, serving_hub
from e2e.stories.service import NAMESPACE, Service, chat_service
from e2e.up import deliver, deliver_images

STORIES_CLUSTER = "sluice-stories"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "stories" in item.path.parts:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of the stories' own, separate from the user's; removed at the end."""
    environment = {**os.environ, "SLUICE_CLUSTER": STORIES_CLUSTER}
    try:
        chosen = start_cluster(environment)
        install_operator(chosen, deliver_images(chosen))
        restrict(chosen, NAMESPACE)
        yield chosen
    finally:
        choose_cluster(environment).down()


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Kubectl:
    return Kubectl(cluster)


@pytest.fixture(scope="session")
def chat(kubectl: Kubectl) -> Service:
    """A Ready service with two engines. Stories leave it Ready; stories that break a service make
    their own."""
    service = Service(kubectl, "chat")
    service.apply(chat_service("chat", replicas=2))
    service.wait_for("Updated", "True")
    return service


@pytest.fixture(scope="session")
def pretended(cluster: Cluster) -> str:
    """The image of an engine that says it has GPUs."""
    return deliver(cluster, {"engine": "engine-pretended"})["engine"]


@pytest.fixture(scope="module")
def gpu_node(kubectl: Kubectl) -> Iterator[str]:
    """The first node, which says it has `GPUS_ON_NODE` GPUs while the stories of a file run."""
    name: str = kubectl.get("nodes")["items"][0]["metadata"]["name"]
    set_gpus(kubectl, name, GPUS_ON_NODE)
    patch_node(kubectl, name, {"metadata": {"labels": LABELS}})
    yield name
    patch_node(kubectl, name, {"metadata": {"labels": dict.fromkeys(LABELS)}})
    set_gpus(kubectl, name, None)


@pytest.fixture(scope="session")
def installed_images(kubectl: Kubectl) -> dict[str, str]:
    """Images in the operator's environment: variable → image."""
    deployment = kubectl.get("deployment", "sluice-operator", "-n", OPERATOR_NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {
        entry["name"]: entry["value"]
        for entry in container["env"]
        if entry["name"].endswith("_IMAGE")
    }


@pytest.fixture(scope="session")
def hub(kubectl: Kubectl, installed_images: dict[str, str]) -> Iterator[Hub]:
    """A hub in the cluster, from which the operator has models fetched."""
    with serving_hub(kubectl, installed_images["SLUICE_ENGINE_IMAGE"]) as found:
        yield found


@pytest.fixture
def url(cluster: Cluster, chat: Service) -> Iterator[str]:
    """The Service's URL as seen from outside the pods."""
    with reach(cluster, chat.namespace, chat.name) as found:
        yield found
