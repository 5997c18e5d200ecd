"""A platform engineer changes a service under load; the application developer notices nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sluice_contract.cluster.labels import ROUTER_ROLE, Role
from sluice_contract.cluster.ports import ROUTER_METRICS

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.interrupted import LongAnswer
from e2e.stories.load import CLIENTS, load
from e2e.stories.pods import metric, pods, poll
from e2e.stories.service import NAMESPACE, Service, chat_service

ROUTERS = {"replicas": 2}
REPLACED_SECONDS = 240
RESUMED = "sluice_router_streams_resumed_total"


@pytest.fixture(scope="module")
def kept(kubectl: Kubectl) -> Iterator[Service]:
    service = Service(kubectl, "busy")
    yield service
    service.delete()


@pytest.fixture
def busy(kept: Service) -> Service:
    """The service of all stories in this file, in the state in which the first one finds it."""
    kept.apply(chat_service("busy", replicas=2, router=ROUTERS))
    kept.wait_for("Progressing", "False")
    kept.wait_for("Updated", "True")
    return kept


def test_an_engine_killed_in_the_middle_of_an_answer_costs_a_pause(
    cluster: Cluster, kubectl: Kubectl, busy: Service
) -> None:
    def resumed() -> float:
        routers = pods(kubectl, busy, ROUTER_ROLE)
        return sum(metric(kubectl, pod, RESUMED, ROUTER_METRICS) for pod in routers)

    before = resumed()
    with reach(cluster, NAMESPACE, busy.name) as url:
        whole = LongAnswer(url).text()
        answer = LongAnswer(url)
        answer.kill_its_engine(kubectl, pods(kubectl, busy, Role.MIXED))
        assert answer.text() == whole
    assert resumed() == before + 1


@pytest.mark.parametrize("replicas", [2, pytest.param(1, marks=pytest.mark.full)])
def test_routers_are_replaced_while_clients_keep_their_connections(
    cluster: Cluster, kubectl: Kubectl, busy: Service, replicas: int
) -> None:
    clients = 2 * CLIENTS
    with reach(cluster, NAMESPACE, busy.name) as url, load(url, clients) as tally:
        for cpu in ("60m", "70m"):
            tally.wait_for_more(clients)
            router = {"replicas": replicas, "resources": {"requests": {"cpu": cpu}}}
            busy.apply(chat_service("busy", replicas=2, router=router))
            path = "{.spec.template.spec.containers[0].resources.requests.cpu}"
            for words in (
                ("wait", f"--for=jsonpath={path}={cpu}", "deployment/busy-router"),
                ("rollout", "status", "deployment/busy-router", "--timeout=120s"),
            ):
                kubectl.run(*words, "-n", NAMESPACE)
        tally.wait_for_more(4 * clients)  # until the old routers' last streams are over
    assert tally.wrong == []


def test_new_revision_scale_in_and_a_deleted_pod(
    cluster: Cluster, kubectl: Kubectl, busy: Service
) -> None:
    with reach(cluster, NAMESPACE, busy.name) as url, load(url) as tally:
        tally.wait_for_more(CLIENTS)
        # A new revision: other chunks, so other processes.
        engine = {"dtype": "float32", "kvPoolTokens": 16384, "chunkSize": 64}
        busy.apply(chat_service("busy", replicas=2, engine=engine, router=ROUTERS))
        busy.wait_for("Progressing", "False")
        busy.wait_for("Updated", "True")
        tally.wait_for_more(CLIENTS)
        busy.apply(chat_service("busy", replicas=1, engine=engine, router=ROUTERS))
        busy.wait_for("Progressing", "False")
        tally.wait_for_more(CLIENTS)
        selector = "serving.sluice.dev/service=busy,serving.sluice.dev/role=router"
        router = kubectl.run("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name").split()[
            0
        ]
        kubectl.run("delete", router, "-n", NAMESPACE)
        busy.apply(chat_service("busy", replicas=2, engine=engine, router=ROUTERS))
        busy.wait_for("Updated", "True")
        tally.wait_for_more(CLIENTS)
    assert tally.wrong == []


def test_without_room_engines_are_replaced_one_after_the_other(
    cluster: Cluster, kubectl: Kubectl, busy: Service
) -> None:
    engine = {"dtype": "float32", "kvPoolTokens": 16384, "chunkSize": 32}
    rollout = {"strategy": "InPlace"}
    before = {pod.name for pod in pods(kubectl, busy, Role.MIXED)}
    counts = set()

    def replaced() -> bool:
        """Whether none of the former engines is left."""
        names = {pod.name for pod in pods(kubectl, busy, Role.MIXED)}
        counts.add(len(names))
        return len(names) == 2 and not names & before

    with reach(cluster, NAMESPACE, busy.name) as url, load(url) as tally:
        tally.wait_for_more(CLIENTS)
        busy.apply(chat_service("busy", 2, engine=engine, router=ROUTERS, rollout=rollout))
        assert "former engines left" in busy.wait_for_reason("Progressing", "InPlace")["message"]
        assert poll(replaced, REPLACED_SECONDS)
        busy.wait_for("Updated", "True")
        tally.wait_for_more(CLIENTS)
    assert tally.wrong == []
    assert max(counts) < 4, "two sets of engines at once: that was a surge"
