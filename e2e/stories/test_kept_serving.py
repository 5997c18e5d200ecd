"""A service that answers goes on answering: through switches of the mode, and edits that go wrong.

Clients do not retry. By its transition time, the condition Ready never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.load import CLIENTS, Tally, load
from e2e.stories.pods import poll
from e2e.stories.service import (
    MODEL,
    NAMESPACE,
    Service,
    chat_service,
    disaggregated_service,
    scaled_between,
)

pytestmark = pytest.mark.full
NAME = "kept"
SWITCHED_SECONDS = 240
ENGINE = {"dtype": "float32", "kvPoolTokens": 16384, "drainSeconds": 30}


@pytest.fixture
def kept(kubectl: Kubectl) -> Iterator[Service]:
    service = Service(kubectl, NAME)
    yield service
    service.delete()
    service.wait_until_children_are_gone()


def ready_engines(kubectl: Kubectl) -> int:
    """Engines of all pools that are ready."""
    selector = f"serving.sluice.dev/service={NAME},serving.sluice.dev/role!=router"
    items = kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
    return sum(
        (condition["type"], condition["status"]) == ("Ready", "True")
        for pod in items
        if "deletionTimestamp" not in pod["metadata"]
        for condition in pod["status"].get("conditions", ())
    )


@contextmanager
def least(count: Callable[[], int]) -> Iterator[list[int]]:
    """The least number that was seen in the block, in a list."""
    found, ended = [count()], threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            found[0] = min(found[0], count())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


@contextmanager
def answering(cluster: Cluster, kept: Service) -> Iterator[Tally]:
    """Clients ask from the beginning to the end; the service is Ready all the time."""
    before = kept.condition("Ready")
    with reach(cluster, NAMESPACE, NAME) as url, load(url) as tally:
        tally.wait_for_more(CLIENTS)
        yield tally
        tally.wait_for_more(CLIENTS)
    assert tally.wrong == []
    after = kept.condition("Ready")
    assert (after["status"], after["lastTransitionTime"]) == ("True", before["lastTransitionTime"])


def test_a_scaled_service_keeps_its_capacity_through_switches_of_the_mode(
    cluster: Cluster, kubectl: Kubectl, kept: Service
) -> None:
    kept.apply(scaled_between(3, 4, chat_service(NAME, engine=ENGINE)))
    kept.wait_for("Updated", "True")
    two_pools = scaled_between(1, 4, disaggregated_service(NAME, 1, 1, engine=ENGINE))
    one_pool = scaled_between(1, 4, chat_service(NAME, engine=ENGINE))
    with answering(cluster, kept) as tally, least(lambda: ready_engines(kubectl)) as found:
        for mode, made in (("Disaggregated", two_pools), ("Mixed", one_pool)):
            kept.apply(made)
            kept.wait_for("Updated", "True")
            roles = kept.get()["status"]["pools"].keys()

            def is_alone(roles: Any = roles) -> bool:
                names = kubectl.run("get", "enginepools", "-n", NAMESPACE, "-o", "name").split()
                there = [name for name in names if f"/{NAME}-" in name]
                return len(there) == len(roles)

            assert poll(is_alone, SWITCHED_SECONDS), "former pools stay"
            assert kept.get()["status"]["mode"] == mode
            tally.wait_for_more(CLIENTS)
    assert found == [3], "fewer engines than before"


def test_a_stuck_roll_out_in_place_that_is_scaled_to_one_goes_on_answering(
    cluster: Cluster, kept: Service
) -> None:
    in_place: dict[str, Any] = {"engine": ENGINE, "rollout": {"strategy": "InPlace"}}
    nowhere = {"uri": "file:///models/nowhere", "name": MODEL}
    kept.apply(chat_service(NAME, 3, **in_place))
    kept.wait_for("Updated", "True")
    with answering(cluster, kept) as tally:
        for replicas in (3, 2, 1):
            kept.apply(chat_service(NAME, replicas, model=nowhere, **in_place))
            kept.wait_for_reason("Progressing", "RolloutHalted")
            tally.wait_for_more(CLIENTS)
        kept.apply(chat_service(NAME, 2, **in_place))
        kept.wait_for("Updated", "True")


def test_a_sleeping_service_wakes_while_its_spec_is_refused(
    cluster: Cluster, kept: Service
) -> None:
    made = scaled_between(0, 1, chat_service(NAME, engine=ENGINE))
    kept.apply(made)
    kept.wait_for_reason("Ready", "ScaledToZero")
    kept.wait_for("Updated", "True")
    slo = {"itlMilliseconds": 40}
    refused = chat_service(NAME, engine=ENGINE | {"mixedChunk": False}, slo=slo)
    kept.apply(scaled_between(0, 1, refused))
    kept.wait_for_reason("Updated", "InvalidSpec")
    with reach(cluster, NAMESPACE, NAME) as url, load(url, 2) as tally:
        tally.wait_for_more(2)
    assert tally.wrong == []
    assert kept.condition("Updated")["reason"] == "InvalidSpec"
