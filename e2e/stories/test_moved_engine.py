"""A site reliability engineer moves an engine to the other pool under load, or has the operator do
it. The engine takes the other role without a restart, and the application developer loses
nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sluice_contract.cluster.labels import Role

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.load import CLIENTS, load
from e2e.stories.pods import PATIENCE_SECONDS, Pod, load_report, pods, poll
from e2e.stories.service import NAMESPACE, Service, disaggregated_service

pytestmark = pytest.mark.full

ENGINE = {"dtype": "float32", "kvPoolTokens": 32768, "drainSeconds": 30}
MOVED = "serving.sluice.dev/moved"
"""Annotation of a pod that the operator has moved."""
MOVED_SECONDS = 20.0
"""Seconds from the changed labels until the engine has the role, under load on few cores."""


@pytest.fixture
def service(kubectl: Kubectl) -> Iterator[Service]:
    service = Service(kubectl, "moved")
    service.apply(disaggregated_service("moved", 2, 1, engine=ENGINE))
    service.wait_for("Updated", "True")
    yield service
    service.delete()


def test_an_engine_moves_to_the_other_pool_under_load(
    cluster: Cluster, kubectl: Kubectl, service: Service
) -> None:
    moved = pods(kubectl, service, Role.PREFILL)[0]
    (other,) = pods(kubectl, service, Role.DECODE)
    with reach(cluster, NAMESPACE, service.name) as url, load(url) as tally:
        tally.wait_for_more(CLIENTS)
        service.apply(disaggregated_service("moved", 2, 2, engine=ENGINE))
        assert poll(lambda: bool(beginning(kubectl)), PATIENCE_SECONDS)
        pattern = pod(kubectl, other.name)["metadata"]
        labels = {"metadata": {"labels": pattern["labels"]}}
        since = time.monotonic()
        patch = ("patch", "pod", moved.name, "-n", NAMESPACE, "-p", json.dumps(labels))
        kubectl.run(*patch)
        (owner,) = pattern["ownerReferences"]
        assert poll(lambda: owned_by(kubectl, moved.name) == owner["uid"], PATIENCE_SECONDS)
        service.apply(disaggregated_service("moved", 1, 2, engine=ENGINE))
        assert poll(lambda: load_report(kubectl, moved).role is Role.DECODE, PATIENCE_SECONDS)
        seconds = time.monotonic() - since
        tally.wait_for_more(4 * CLIENTS)
        service.wait_for("Updated", "True")
    assert tally.wrong == []
    print(f"moved within {seconds:.1f} s")
    assert seconds < MOVED_SECONDS
    has_moved(kubectl, service, moved.name, other.name)


def scaled(prefill: int, decode: int) -> dict[str, Any]:
    """The service with pools of these sizes, which the operator's autoscaler keeps."""
    made = disaggregated_service("moved", prefill, decode, engine=ENGINE)
    for section in (made["spec"], made["spec"]["prefill"]):
        size = section.pop("replicas")
        section["autoscaling"] = {"minReplicas": size, "maxReplicas": size}
    return made


def test_the_operator_moves_an_engine_that_one_pool_gives_and_the_other_lacks(
    cluster: Cluster, kubectl: Kubectl
) -> None:
    service = Service(kubectl, "moved")
    service.apply(scaled(2, 1))
    service.wait_for("Updated", "True")
    before = {role: {each.name for each in pods(kubectl, service, role)} for role in Role}
    try:
        with reach(cluster, NAMESPACE, service.name) as url, load(url) as tally:
            tally.wait_for_more(2 * CLIENTS)
            since = time.monotonic()
            service.apply(scaled(1, 2))
            assert poll(lambda: bool(movers(kubectl, service)), PATIENCE_SECONDS)
            (moved,) = movers(kubectl, service)
            print(f"asked for, and moved {time.monotonic() - since:.1f} s later")
            since = time.monotonic()
            assert poll(lambda: load_report(kubectl, moved).role is Role.DECODE, PATIENCE_SECONDS)
            seconds = time.monotonic() - since
            tally.wait_for_more(4 * CLIENTS)
            assert poll(lambda: len(pods(kubectl, service, Role.PREFILL)) == 1, PATIENCE_SECONDS)
            service.wait_for("Updated", "True")
        assert tally.wrong == []
        print(f"has its role {seconds:.1f} s after it was moved")
        assert seconds < MOVED_SECONDS
        assert moved.name in before[Role.PREFILL]
        has_moved(kubectl, service, moved.name, *before[Role.DECODE])
    finally:
        service.delete()


def movers(kubectl: Kubectl, service: Service) -> list[Pod]:
    """Decode engines that were prefill engines."""
    return [
        each
        for each in pods(kubectl, service, Role.DECODE)
        if MOVED in pod(kubectl, each.name)["metadata"].get("annotations", {})
    ]


def has_moved(kubectl: Kubectl, service: Service, name: str, *others: str) -> None:
    """Asserts that the engine answers in its new pool, together with `others`, and that no engine
    was started."""
    (moved,) = (each for each in pods(kubectl, service, Role.DECODE) if each.name == name)
    assert load_report(kubectl, moved).figures.finished_requests_total, "it answers in its new role"
    names = {role: [p.name for p in pods(kubectl, service, role)] for role in Role}
    assert names[Role.DECODE] == sorted([name, *others])
    assert len(names[Role.PREFILL]) == 1
    assert pod(kubectl, name)["status"]["containerStatuses"][0]["restartCount"] == 0


def pod(kubectl: Kubectl, name: str) -> dict[str, Any]:
    return kubectl.get("pod", name, "-n", NAMESPACE)


def owned_by(kubectl: Kubectl, name: str) -> str | None:
    owners = pod(kubectl, name)["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def beginning(kubectl: Kubectl) -> list[str]:
    """Decode engines that are not ready yet."""
    selector = "serving.sluice.dev/service=moved,serving.sluice.dev/role=decode"
    found = kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
    return [pod["metadata"]["name"] for pod in found if not is_ready(pod)]


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
