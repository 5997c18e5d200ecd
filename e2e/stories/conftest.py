"""One cluster with this checkout's images and operator, for all stories; one service to talk to."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster.choose import choose_cluster
from e2e.cluster.provider import Cluster
from e2e.install import install_operator
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.service import Service, chat_service
from e2e.up import deliver_images

STORIES_CLUSTER = "sluice-stories"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "stories" in item.path.parts:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of the stories' own, beside the user's; removed at the end."""
    chosen = choose_cluster({**os.environ, "SLUICE_CLUSTER": STORIES_CLUSTER})
    try:
        chosen.up()
        install_operator(chosen, deliver_images(chosen))
        yield chosen
    finally:
        chosen.down()


@pytest.fixture(scope="session")
def kubectl(cluster: Cluster) -> Kubectl:
    return Kubectl(cluster)


@pytest.fixture(scope="session")
def chat(kubectl: Kubectl) -> Service:
    """A Ready service with two engines. Stories leave it Ready; those that break things make one
    of their own."""
    service = Service(kubectl, "chat")
    service.apply(chat_service("chat", replicas=2))
    service.wait_for("Updated", "True")
    return service


@pytest.fixture
def url(cluster: Cluster, chat: Service) -> Iterator[str]:
    """The Service's URL as seen from outside the pods."""
    with reach(cluster, chat.namespace, chat.name) as found:
        yield found
