"""A platform engineer gives a service a budget of GPUs, which holds at every instant. If the
cluster lacks room for more engines, the status says so.

The GPUs are pretended: the node says that it has them, and a test's engine image says so too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sluice_contract.cluster.labels import Role

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.gpus import ENV, GPUS_ON_NODE, make_ready, pretended_node, set_gpus
from e2e.stories.load import load, long_prompts
from e2e.stories.pods import PATIENCE_SECONDS, poll
from e2e.stories.scaled import Scaled
from e2e.stories.service import NAMESPACE, Service, chat_service, disaggregated_service
from e2e.stories.test_autoscaling import BURST_CLIENTS, GROWN_SECONDS, scaled_service
from e2e.stories.test_rollouts import engines, is_ready

BUDGET = 3
CLIENTS = 2
ENGINE = {"dtype": "float32", "kvPoolTokens": 16384, "drainSeconds": 30, "threads": 1}
LOST = "lost"
"""Name of a node."""


def budgeted(image: str, budget: int) -> dict[str, Any]:
    """Two pools with one GPU for each engine. Without the budget they would grow to eight
    engines."""
    made = scaled_service("budget", least=1, most=4, router={"replicas": 1})
    made["spec"]["engine"] |= {"image": image, "dtype": "float32"}
    made["spec"]["autoscaling"] |= {"gpuBudget": budget}
    made["spec"] |= {"accelerator": {"count": 1}, "template": {"env": ENV}}
    return made


@dataclass(frozen=True)
class Engine:
    """A pod that holds a GPU, or asks for one."""

    role: str
    stays: bool
    """False: the pod is being deleted."""
    is_ready: bool


class Watched:
    """The engines of a service at each instant, by a watch of every change."""

    def __init__(self) -> None:
        self.most = 0
        self.most_staying = 0
        self.fewest_ready = sys.maxsize
        """Engines that could answer a request, at the worst moment since `is_complete`."""
        self._engines: dict[str, Engine] = {}

    def is_complete(self, engines: int) -> bool:
        """Whether `engines` engines could answer now; begins a new count of the fewest."""
        self.fewest_ready = self._ready()
        return self.fewest_ready == engines

    def change(self, event: Mapping[str, Any]) -> None:
        pod = event["object"]
        name, phase = pod["metadata"]["name"], pod["status"].get("phase")
        role = pod["metadata"]["labels"].get("serving.sluice.dev/role")
        if event["type"] == "DELETED" or phase in ("Succeeded", "Failed") or role not in set(Role):
            self._engines.pop(name, None)
        else:
            stays = "deletionTimestamp" not in pod["metadata"]
            self._engines[name] = Engine(role, stays, is_ready(pod))
        self.most = max(self.most, len(self._engines))
        staying = sum(engine.stays for engine in self._engines.values())
        self.most_staying = max(self.most_staying, staying)
        self.fewest_ready = min(self.fewest_ready, self._ready())

    def _ready(self) -> int:
        """Engines that could answer. Decode engines count only with a prefill engine, which
        computes prompts."""
        ready = Counter(engine.role for engine in self._engines.values() if engine.is_ready)
        decode = ready[Role.DECODE] if ready[Role.PREFILL] else 0
        return ready[Role.MIXED] + decode


@contextmanager
def watched(kubectl: Kubectl, service: str) -> Iterator[Watched]:
    """Follows the pods of the service inside the block."""
    argv = kubectl.argv(
        "get", "pods", "-n", NAMESPACE, "-l", f"serving.sluice.dev/service={service}", "--watch",
        "--output-watch-events", "-o", "json",
    )  # fmt: skip
    seen, process = Watched(), subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    follower = threading.Thread(target=_follow, args=(process, seen))
    follower.start()
    try:
        yield seen
    finally:
        process.terminate()
        follower.join()
        process.communicate()


def _follow(process: subprocess.Popen[str], seen: Watched) -> None:
    assert process.stdout is not None
    decoder, text = json.JSONDecoder(), ""
    for line in process.stdout:
        text += line
        try:
            event, end = decoder.raw_decode(text)
        except json.JSONDecodeError:
            continue  # the rest of the event is to come
        seen.change(event)
        text = text[end:].lstrip()


@pytest.mark.full  # tests/operator/service/test_budget.py has any sequence of scalings
def test_a_budget_holds_at_every_instant_and_no_room_is_named(
    cluster: Cluster, kubectl: Kubectl, pretended: str, gpu_node: str
) -> None:
    found = Scaled(kubectl, "budget")
    with watched(kubectl, "budget") as seen:
        found.service.apply(budgeted(pretended, BUDGET))
        found.service.wait_for("Updated", "True")
        try:
            with (
                reach(cluster, NAMESPACE, "budget") as url,
                load(url, BURST_CLIENTS) as burst,
                long_prompts(url, BURST_CLIENTS) as prompts,
            ):
                full = poll(lambda: sum(found.ready().values()) == BUDGET, GROWN_SECONDS)
                assert full, f"{found.replicas()}: {found.scaling()}"
                burst.wait_for_more(BURST_CLIENTS)
                assert poll(lambda: seen.most >= BUDGET, GROWN_SECONDS), "the watch is silent"
                assert seen.most == BUDGET
                found.service.apply(budgeted(pretended, 2 * GPUS_ON_NODE))
                named = poll(lambda: "lock" in str(found.scaling()), GROWN_SECONDS)
                assert named, f"{found.replicas()}: {found.scaling()}"
                full = poll(lambda: sum(found.ready().values()) == GPUS_ON_NODE, GROWN_SECONDS)
                assert full, f"{found.replicas()}: {found.scaling()}"
            assert burst.wrong == prompts.wrong == []
        finally:
            found.service.delete()
        found.service.wait_until_children_are_gone()


def on_gpus(made: dict[str, Any], image: str, budget: int, chunk_size: int) -> dict[str, Any]:
    """The service with one GPU for each engine, and a budget of GPUs. Another chunk size causes a
    roll-out."""
    gpus = {"accelerator": {"count": 1}, "template": {"env": ENV}}
    engine = ENGINE | {"image": image, "chunkSize": chunk_size}
    scaling = {"autoscaling": {"gpuBudget": budget}}
    return made | {"spec": made["spec"] | gpus | scaling | {"engine": engine}}


@pytest.fixture(scope="module")
def lending(kubectl: Kubectl, pretended: str, gpu_node: str) -> Iterator[Service]:
    """A prefill engine and three that decode, on a node with one GPU more."""
    set_gpus(kubectl, gpu_node, 5)
    service = Service(kubectl, "lending")
    service.apply(on_gpus(disaggregated_service("lending", 1, 3), pretended, 4, 64))
    service.wait_for("Updated", "True")
    yield service
    service.delete()
    service.wait_until_children_are_gone()
    set_gpus(kubectl, gpu_node, GPUS_ON_NODE)


@pytest.mark.parametrize(
    ("budget", "chunk_size"), [(4, 128), pytest.param(5, 256, marks=pytest.mark.full)]
)
def test_a_roll_out_of_one_prefill_engine_and_three_others_interrupts_nothing(
    cluster: Cluster,
    kubectl: Kubectl,
    lending: Service,
    pretended: str,
    budget: int,
    chunk_size: int,
) -> None:
    """The pool of three lends a GPU to the other pool where the budget is full; otherwise one is
    free."""
    former, before = engines(kubectl, lending), lending.condition("Ready")
    with (
        reach(cluster, NAMESPACE, lending.name) as url,
        load(url, CLIENTS) as tally,
        watched(kubectl, lending.name) as seen,
    ):
        tally.wait_for_more(CLIENTS)
        assert poll(lambda: seen.is_complete(3), PATIENCE_SECONDS)
        made = disaggregated_service(lending.name, 1, 3)
        lending.apply(on_gpus(made, pretended, budget, chunk_size))
        lending.wait_for("Progressing", "False")
        lending.wait_for("Updated", "True")
        assert not former & engines(kubectl, lending)
        tally.wait_for_more(CLIENTS)
    assert tally.wrong == []
    assert seen.fewest_ready >= 1
    assert seen.most == budget
    after = lending.condition("Ready")
    assert (after["status"], after["lastTransitionTime"]) == ("True", before["lastTransitionTime"])


@pytest.fixture
def halved(kubectl: Kubectl, pretended: str, gpu_node: str) -> Iterator[tuple[Service, str]]:
    """A service with two engines, and the pod of the one that is on the node `LOST`."""
    set_gpus(kubectl, gpu_node, 1)
    service = Service(kubectl, "halved")
    with pretended_node(kubectl, LOST, gpus=1):
        service.apply(on_gpus(chat_service("halved", 2), pretended, 2, 64))
        assert poll(lambda: bool(pods_of(kubectl, service, LOST)), PATIENCE_SECONDS)
        (lost,) = pods_of(kubectl, service, LOST)
        make_ready(kubectl, lost)
        service.wait_for("Updated", "True")
        set_gpus(kubectl, gpu_node, GPUS_ON_NODE)
        yield service, lost
        service.delete()
        kubectl.run("delete", "pod", lost, "-n", NAMESPACE, "--force", "--ignore-not-found")
        service.wait_until_children_are_gone()


def pods_of(kubectl: Kubectl, service: Service, node: str) -> list[str]:
    """The service's pods on a node."""
    words = ("-l", f"serving.sluice.dev/service={service.name}", "--field-selector")
    found = kubectl.get("pods", "-n", NAMESPACE, *words, f"spec.nodeName={node}")["items"]
    return [pod["metadata"]["name"] for pod in found]


@pytest.mark.full  # a minute of it is the patience with pods that leave
def test_what_waits_for_the_gpus_of_a_lost_node_is_named_and_nothing_ends_for_it(
    cluster: Cluster, kubectl: Kubectl, halved: tuple[Service, str], pretended: str
) -> None:
    """A pod that Kubernetes evicts from the node never leaves, as its kubelet is gone."""
    service, lost = halved
    with (
        reach(cluster, NAMESPACE, service.name) as url,
        load(url, CLIENTS) as tally,
        watched(kubectl, service.name) as seen,
    ):
        kubectl.run("delete", "pod", lost, "-n", NAMESPACE, "--grace-period=1", "--wait=false")
        assert poll(lambda: seen.most == 3 and seen.is_complete(2), PATIENCE_SECONDS)
        former = engines(kubectl, service)
        service.apply(on_gpus(chat_service("halved", 2), pretended, 2, 128))
        told = service.wait_for_reason("Stalled", "PodsNotLeaving")["message"]
        assert f"{lost} of node {LOST}" in told
        assert seen.fewest_ready == 2
        assert engines(kubectl, service) == former
        kubectl.run("delete", "pod", lost, "-n", NAMESPACE, "--force")
        service.wait_for("Updated", "True")
        assert service.condition("Stalled") == {}
        assert not former & engines(kubectl, service)
        tally.wait_for_more(CLIENTS)
    assert tally.wrong == []
    assert seen.fewest_ready == 1
    assert seen.most_staying == 2
    assert seen.most == 3, "more than the two, and the one that cannot leave"
