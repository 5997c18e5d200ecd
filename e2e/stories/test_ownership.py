"""What the operator makes it keeps in order, and nothing outlives the InferenceService."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE, Service, chat_service, unix_seconds

CHILDREN = ("service/owned", "deployment/owned-router")
CREATED_SECONDS = 30


@pytest.fixture(scope="module")
def owned(kubectl: Kubectl) -> Iterator[Service]:
    made = Service(kubectl, "owned")
    yield made
    made.delete()


@pytest.fixture
def service(owned: Service) -> Service:
    """Ready; the one of the story before, unless that has deleted it."""
    owned.apply(chat_service("owned"))
    owned.wait_for("Updated", "True")
    return owned


def scale_operator(kubectl: Kubectl, replicas: int) -> None:
    deployment = "deployment/sluice-operator"
    kubectl.run("scale", deployment, "-n", OPERATOR_NAMESPACE, f"--replicas={replicas}")
    kubectl.run("rollout", "status", deployment, "-n", OPERATOR_NAMESPACE, "--timeout=120s")


def test_a_deleted_child_comes_back(kubectl: Kubectl, service: Service) -> None:
    before = [child for child in service.children() if not child.startswith("pod/")]
    deleted = time.time()
    kubectl.run("delete", *CHILDREN, "-n", NAMESPACE)
    for child in CHILDREN:
        kubectl.run("wait", "--for=create", child, "-n", NAMESPACE, "--timeout=120s")
        created = kubectl.get(child, "-n", NAMESPACE)["metadata"]["creationTimestamp"]
        assert unix_seconds(created) - deleted < CREATED_SECONDS, child
    after = [child for child in service.children() if not child.startswith("pod/")]
    assert after == before
    service.wait_for("Updated", "True")


def test_deleted_while_the_operator_is_down(kubectl: Kubectl, service: Service) -> None:
    scale_operator(kubectl, 0)
    try:
        service.delete()
        service.wait_until_children_are_gone()
        assert service.children() == []
    finally:
        scale_operator(kubectl, 1)
