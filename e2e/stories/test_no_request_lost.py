"""A platform engineer changes a service under load; the application developer notices nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import openai
import pytest

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service

CLIENTS = 6
SEEDS = 1000
"""Prompts that the sample's model copies right; of others it gets one in several hundred wrong."""
ROUTERS = {"replicas": 2}


@dataclass
class Tally:
    """What the clients saw."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    progressed: threading.Condition = field(default_factory=threading.Condition)

    def record(self, error: str | None) -> None:
        with self.progressed:
            if error is None:
                self.right += 1
            else:
                self.wrong.append(error)
            self.progressed.notify_all()

    def wait_for_more(self, requests: int) -> None:
        """Until so many more requests were answered right."""
        with self.progressed:
            target = self.right + requests
            assert self.progressed.wait_for(lambda: self.right >= target or self.wrong, 120)


@contextmanager
def load(url: str, clients: int = CLIENTS) -> Iterator[Tally]:
    """Clients that stream one copy task after the other until the block ends."""
    tally, stopping = Tally(), threading.Event()
    threads = [
        threading.Thread(target=_ask, args=(url, number, tally, stopping))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _ask(url: str, number: int, tally: Tally, stopping: threading.Event) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    seed = number
    while not stopping.is_set():
        seed = (seed + 100) % SEEDS
        prompt, answer = make_prompt("copy", 256, seed)
        try:
            chunks = client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=300, temperature=0, stream=True
            )
            text = "".join(chunk.choices[0].text for chunk in chunks)
            tally.record(None if text == answer else f"seed {seed}: {text!r}")
        except openai.OpenAIError as error:
            tally.record(f"seed {seed}: {error!r}")


@pytest.fixture
def busy(kubectl: Kubectl) -> Iterator[Service]:
    service = Service(kubectl, "busy")
    service.apply(chat_service("busy", replicas=2, router=ROUTERS))
    service.wait_for("Updated", "True")
    yield service
    service.delete()


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


@pytest.mark.parametrize("replicas", [2, 1])
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
