"""A platform engineer changes a service, well and badly, under load; the application developer
notices nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from sluice_contract.cluster.labels import CANARY, ROLE, Role

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.gpus import A100, ENV
from e2e.stories.load import CLIENTS, Tally, load
from e2e.stories.pods import pods, poll
from e2e.stories.service import (
    KIND,
    MODEL,
    NAMESPACE,
    Service,
    chat_service,
    disaggregated_service,
)

NAME = "rolled"
ROLLED_SECONDS = 240
RECORDED_SECONDS = 60
"""Seconds until a complete revision is recorded, which happens after the status says so."""
LOOKED_UP: dict[str, Any] = {"dtype": "float32", "kvPoolTokens": 16384, "drainSeconds": 30}
Sluice = Callable[..., tuple[int, str]]


@pytest.fixture
def rolled(kubectl: Kubectl) -> Iterator[Service]:
    service = Service(kubectl, NAME)
    service.apply(chat_service(NAME, replicas=2, engine=LOOKED_UP))
    service.wait_for("Updated", "True")
    assert poll(lambda: bool(service.recorded_specs()), RECORDED_SECONDS), "undo has no way back"
    yield service
    service.delete()


@pytest.fixture
def tally(cluster: Cluster, rolled: Service) -> Iterator[Tally]:
    """The clients' results from the beginning to the end of the story."""
    with reach(cluster, NAMESPACE, NAME) as url, load(url) as found:
        found.wait_for_more(CLIENTS)
        yield found


@pytest.fixture
def sluice(cluster: Cluster) -> Sluice:
    """Runs `sluice rollout COMMAND rolled`; returns its exit status and its output."""

    def run(command: str, *words: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "sluice_operator.cli.main", "rollout", command, NAME, *words]
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


class Watched:
    """The engines of a service, looked at repeatedly for the length of a block."""

    def __init__(self, kubectl: Kubectl, service: Service) -> None:
        self._kubectl, self._service = kubectl, service
        self.fewest = sys.maxsize
        """Ready engines that could serve a request, at the worst moment."""

    def ready(self) -> Counter[str]:
        """Engines of each role that are ready and stay."""
        selector = f"serving.sluice.dev/service={self._service.name}"
        live = self._kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
        roles = [pod["metadata"]["labels"][ROLE] for pod in live if is_ready(pod)]
        return Counter(role for role in roles if role in list(Role))

    def has(self, engines: dict[Role, int]) -> bool:
        return self.ready() == engines

    @contextmanager
    def all_the_time(self) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                ready = self.ready()
                decode = ready[Role.DECODE] if ready[Role.PREFILL] else 0
                self.fewest = min(self.fewest, ready[Role.MIXED] + decode)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether the pod is ready and stays."""
    conditions = {item["type"]: item["status"] for item in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def engines(kubectl: Kubectl, service: Service) -> set[str]:
    return {pod.name for role in Role for pod in pods(kubectl, service, role)}


def test_a_bad_revision_is_halted_and_undone(
    kubectl: Kubectl, rolled: Service, tally: Tally, sluice: Sluice
) -> None:
    before = engines(kubectl, rolled)
    nowhere = {"uri": "file:///models/nowhere", "name": MODEL}
    rolled.apply(chat_service(NAME, replicas=2, engine=LOOKED_UP, model=nowhere))
    status, told = sluice("status", "--timeout", "240s")
    assert status == 1, told
    assert "/models/nowhere" in told
    halted = rolled.wait_for_reason("Progressing", "RolloutHalted")
    assert f"pod {NAME}-mixed-" in halted["message"]
    assert rolled.condition("Ready")["status"] == "True"
    tally.wait_for_more(CLIENTS)

    assert sluice("undo")[0] == 0
    status, told = sluice("status", "--timeout", "240s")
    assert status == 0, told
    assert rolled.get()["spec"]["model"]["uri"] == "file:///models/sluice-tiny"
    assert before <= engines(kubectl, rolled), "a former engine has been replaced"
    assert poll(lambda: engines(kubectl, rolled) == before, ROLLED_SECONDS)
    tally.wait_for_more(CLIENTS)
    assert tally.wrong == []


def test_a_canary_is_promoted_and_another_one_aborted(
    kubectl: Kubectl, rolled: Service, tally: Tally, sluice: Sluice
) -> None:
    """Never fewer usable engines than the two that the service has."""
    watched, canary = Watched(kubectl, rolled), {"canary": {"steps": [25]}}
    for chunk, decision, reason in ((64, "promote", "AllReady"), (32, "abort", "CanaryAborted")):
        before = engines(kubectl, rolled)
        with watched.all_the_time():
            engine = LOOKED_UP | {"chunkSize": chunk}
            rolled.apply(chat_service(NAME, replicas=2, engine=engine, rollout=canary))
            rolled.wait_for_reason("Progressing", "CanaryStep")
            assert poll(partial(watched.has, {Role.MIXED: 3}), ROLLED_SECONDS), chunk
            assert poll(lambda: shares(kubectl) == {"25"}, RECORDED_SECONDS), "slices have no label"
            tally.wait_for_more(10 * CLIENTS)
            assert sluice(decision)[0] == 0
            rolled.wait_for_reason("Updated", reason)
            status, printed = sluice("status", "--no-watch")
            assert status == (decision == "abort"), printed
            assert poll(partial(watched.has, {Role.MIXED: 2}), ROLLED_SECONDS), decision
            assert poll(lambda: not shares(kubectl), RECORDED_SECONDS), decision
            tally.wait_for_more(CLIENTS)
        after = engines(kubectl, rolled)
        assert after == before if decision == "abort" else not after & before
        assert tally.wrong == [], decision
        assert watched.fewest >= 2, decision


def shares(kubectl: Kubectl) -> set[str]:
    """Percents in the labels of the service's EndpointSlices."""
    selector = f"kubernetes.io/service-name={NAME}-mixed"
    slices = kubectl.get("endpointslices", "-n", NAMESPACE, "-l", selector)["items"]
    found = (item["metadata"]["labels"].get(CANARY) for item in slices)
    return {label.rpartition(".")[2] for label in found if label}


def test_a_prefill_pool_comes_and_goes(
    kubectl: Kubectl, rolled: Service, tally: Tally, sluice: Sluice
) -> None:
    """Never fewer usable engines than the two that the service has."""
    watched = Watched(kubectl, rolled)
    for change, section, roles in (
        ("comes", "{}", {Role.PREFILL: 1, Role.DECODE: 2}),
        ("goes", "null", {Role.MIXED: 2}),
    ):
        patch = f'{{"spec": {{"prefill": {section}}}}}'
        with watched.all_the_time():
            kubectl.run("patch", KIND, NAME, "-n", NAMESPACE, "--type=merge", f"-p={patch}")
            status, told = sluice("status", "--timeout", f"{ROLLED_SECONDS}s")
            assert status == 0, (change, told)
            assert poll(partial(watched.has, roles), ROLLED_SECONDS), change
            tally.wait_for_more(CLIENTS)
        assert tally.wrong == [], change
        assert watched.fewest >= 2, change


@pytest.mark.full
def test_model_image_accelerator_mode_and_a_restart(
    kubectl: Kubectl, rolled: Service, tally: Tally, sluice: Sluice, pretended: str, gpu_node: str
) -> None:
    on_gpus = {"accelerator": {"count": 1, "product": A100}, "template": {"env": ENV}}
    other_image = LOOKED_UP | {"image": pretended}
    changes: dict[str, dict[str, Any]] = {
        # The same files under another URI, so that answers can be compared.
        "model": chat_service(
            NAME, 2, engine=LOOKED_UP, model={"uri": "file:///models/sluice-tiny/", "name": MODEL}
        ),
        "image": chat_service(NAME, 2, engine=other_image),
        "accelerator": chat_service(NAME, 2, engine=other_image, **on_gpus),
        "two pools": disaggregated_service(NAME, 1, 1, engine=LOOKED_UP),
        "one pool": chat_service(NAME, 2, engine=LOOKED_UP),
    }
    for change, manifest in changes.items():
        rolls(kubectl, rolled, tally, sluice, change, partial(rolled.apply, manifest))
    rolls(kubectl, rolled, tally, sluice, "restart", lambda: sluice("restart"))


def rolls(
    kubectl: Kubectl,
    rolled: Service,
    tally: Tally,
    sluice: Sluice,
    change: str,
    make: Callable[[], object],
) -> None:
    """Makes a change; returns when all former engines have left, and requests were answered."""
    before = engines(kubectl, rolled)
    make()
    status, told = sluice("status", "--timeout", f"{ROLLED_SECONDS}s")
    assert status == 0, (change, told)
    assert poll(lambda: not engines(kubectl, rolled) & before, ROLLED_SECONDS), change
    tally.wait_for_more(CLIENTS)
    assert tally.wrong == [], change
