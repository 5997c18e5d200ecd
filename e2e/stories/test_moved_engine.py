"""A site reliability engineer moves an engine to the other pool under load; it takes the other role
without being started anew, and the application developer loses nothing."""

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
from e2e.stories.pods import PATIENCE_SECONDS, load_report, pods, poll
from e2e.stories.service import NAMESPACE, Service, disaggregated_service

pytestmark = pytest.mark.full

ENGINE = {"dtype": "float32", "kvPoolTokens": 32768, "drainSeconds": 30}
MOVED_SECONDS = 20.0
"""From the changed labels until it has the role, under load on few cores."""


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
    assert load_report(kubectl, moved).finished_requests_total, "it answers in its new role"
    names = {role: [p.name for p in pods(kubectl, service, role)] for role in Role}
    assert names[Role.DECODE] == sorted([moved.name, other.name])
    assert len(names[Role.PREFILL]) == 1
    assert pod(kubectl, moved.name)["status"]["containerStatuses"][0]["restartCount"] == 0


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
