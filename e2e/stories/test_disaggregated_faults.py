"""An SRE kills, evicts, rolls, scales and switches two pools under load; the application developer,
whose client does not retry, notices nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from sluice_contract.cluster.labels import ROUTER_ROLE, Role
from sluice_contract.cluster.ports import ROUTER_METRICS

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.interrupted import LongAnswer
from e2e.stories.load import CLIENTS, Tally, load
from e2e.stories.pods import (
    Pod,
    held_requests,
    load_report,
    metric,
    pods,
    poll,
    wait_until_idle,
)
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service, disaggregated_service

IDLE_SECONDS = 30
ABORTED_SECONDS = 2
"""Seconds in which engines must drop a request; its answer would take longer. Each look at an
engine starts a program."""
REPLACED_SECONDS = 120
RETRIES = "sluice_router_retries_total"
RESUMED = "sluice_router_streams_resumed_total"
ROLES = (Role.PREFILL, Role.DECODE)
ENGINE = {"dtype": "float32", "kvPoolTokens": 16384, "drainSeconds": 30}


class Apart:
    """The service of the stories in this file."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.service = Service(kubectl, "apart")

    def apply(self, prefill: int = 2, decode: int = 2, **engine: Any) -> None:
        """Applies two pools; returns when the service is as the spec asks."""
        manifest = disaggregated_service(
            "apart", prefill, decode, engine=ENGINE | engine, router={"replicas": 2}
        )
        self._apply(manifest)

    def apply_mixed(self) -> None:
        manifest = chat_service("apart", replicas=2, engine=ENGINE, router={"replicas": 2})
        self._apply(manifest)

    def engines(self, *roles: Role) -> list[Pod]:
        return [engine for role in roles for engine in pods(self.kubectl, self.service, role)]

    def routers(self) -> list[Pod]:
        return pods(self.kubectl, self.service, ROUTER_ROLE)

    def counted(self, name: str) -> float:
        """A metric of all routers together."""
        return sum(metric(self.kubectl, pod, name, ROUTER_METRICS) for pod in self.routers())

    def waiting_for_prefill(self) -> int:
        """Requests on the decode engines whose prompt has not arrived yet."""
        reports = [load_report(self.kubectl, engine) for engine in self.engines(Role.DECODE)]
        return sum(
            report.figures.queues.prealloc + report.figures.queues.transfer for report in reports
        )

    def pod_names(self) -> list[str]:
        """Names of all its pods, routers too."""
        selector = f"serving.sluice.dev/service={self.service.name}"
        found = self.kubectl.run("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name")
        return [name.removeprefix("pod/") for name in found.split()]

    def restarts(self, pod: Pod) -> int:
        found = self.kubectl.get("pod", pod.name, "-n", NAMESPACE)
        return int(found["status"]["containerStatuses"][0]["restartCount"])

    def wait_until_ready_again(self, pod: Pod, restarts: int) -> None:
        """Waits until the pod is ready after its container was restarted `restarts` times."""
        assert poll(lambda: self.restarts(pod) >= restarts, REPLACED_SECONDS)
        self.kubectl.run(
            "wait", "--for=condition=Ready", f"pod/{pod.name}", "-n", NAMESPACE,
            f"--timeout={REPLACED_SECONDS}s",
        )  # fmt: skip

    def evict(self, pod: str) -> bool:
        """Evicts a pod; False if the disruption budget does not allow it now."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        try:
            self.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        except ClusterError as error:
            if "disruption budget" not in str(error):
                raise
            return False
        return True

    def wait_until_idle(self, *roles: Role) -> None:
        wait_until_idle(self.kubectl, self.engines(*roles), IDLE_SECONDS)

    def _apply(self, manifest: dict[str, Any]) -> None:
        self.service.apply(manifest)
        self.service.wait_for("Progressing", "False")
        self.service.wait_for("Updated", "True")


@pytest.fixture(scope="module")
def deployed(kubectl: Kubectl) -> Iterator[Apart]:
    made = Apart(kubectl)
    yield made
    made.service.delete()


@pytest.fixture
def apart(deployed: Apart) -> Apart:
    """The service with two engines in each pool; repairs changes of the story before."""
    deployed.apply()
    return deployed


@pytest.fixture
def url(cluster: Cluster, apart: Apart) -> Iterator[str]:
    with reach(cluster, NAMESPACE, apart.service.name) as found:
        yield found


@pytest.fixture
def tally(apart: Apart, url: str) -> Iterator[Tally]:
    """The load. When the story is over, all answers must have been right, and no engine may hold a
    request."""
    with load(url) as counted:
        counted.wait_for_more(CLIENTS)
        yield counted
        counted.wait_for_more(CLIENTS)
    assert counted.wrong == []
    apart.wait_until_idle(*ROLES)


def test_another_pair_goes_on_where_a_killed_decode_engine_was(apart: Apart, url: str) -> None:
    """A prefill engine computes the answer's prompt again, and a decode engine continues after the
    ids that were sent so far."""
    resumed, whole = apart.counted(RESUMED), LongAnswer(url).text()
    answer = LongAnswer(url)
    answer.kill_its_engine(apart.kubectl, apart.engines(Role.DECODE))
    assert answer.text() == whole
    assert apart.counted(RESUMED) == resumed + 1
    apart.wait_until_idle(*ROLES)


def test_an_engine_of_each_pool_is_killed_with_requests_in_it(apart: Apart, tally: Tally) -> None:
    """Another pair computes the prompts, and another pair continues the answers."""
    prefill, decode = (apart.engines(role)[0] for role in ROLES)
    retries, resumed = apart.counted(RETRIES), apart.counted(RESUMED)
    prefill.freeze()
    assert poll(lambda: apart.waiting_for_prefill() > 0, REPLACED_SECONDS), "nobody asked it"
    prefill.kill()
    tally.wait_for_more(CLIENTS)
    assert apart.counted(RETRIES) > retries
    assert poll(
        lambda: load_report(apart.kubectl, decode).figures.running_requests > 1, REPLACED_SECONDS
    )
    decode.kill()
    tally.wait_for_more(CLIENTS)
    assert apart.counted(RESUMED) > resumed
    assert tally.wrong == []


@pytest.mark.full
@pytest.mark.parametrize("role", ROLES)
def test_a_killed_engine_serves_again_under_its_old_address(
    apart: Apart, tally: Tally, role: Role
) -> None:
    killed, _ = apart.engines(role)
    restarts = apart.restarts(killed)
    killed.kill()
    apart.wait_until_ready_again(killed, restarts + 1)
    assert poll(lambda: held_requests(load_report(apart.kubectl, killed)) > 0, REPLACED_SECONDS)
    tally.wait_for_more(2 * CLIENTS)
    assert tally.wrong == []


@pytest.mark.full
def test_a_router_is_killed(apart: Apart, tally: Tally) -> None:
    """Only the connections to it are lost, and nothing once it is back."""
    killed, _ = apart.routers()
    restarts = apart.restarts(killed)
    tally.expects_cuts = True
    killed.kill()
    apart.wait_until_ready_again(killed, restarts + 1)
    tally.expects_cuts = False
    assert tally.cut_off > 0, "none of the clients was connected to it"
    tally.wait_for_more(2 * CLIENTS)
    assert tally.wrong == []


@pytest.mark.full
def test_nobody_works_for_a_router_that_was_killed(apart: Apart, url: str) -> None:
    engines, routers = apart.engines(*ROLES), apart.routers()
    with httpx.Client(trust_env=False, timeout=60) as client:
        body = {"model": MODEL, "prompt": "copy: a\n", "max_tokens": 4000, "stream": True}
        asked = {"ignore_eos": True, "temperature": 0}
        with client.stream("POST", f"{url}/v1/completions", json=body | asked) as answer:
            assert next(answer.iter_lines())
            assert sum(held_requests(load_report(apart.kubectl, pod)) for pod in engines) == 1
            for router in routers:
                router.kill()
            wait_until_idle(apart.kubectl, engines, ABORTED_SECONDS)


@pytest.mark.full
def test_only_the_engine_process_of_prefill_is_killed(apart: Apart, tally: Tally) -> None:
    killed, _ = apart.engines(Role.PREFILL)
    before = apart.restarts(killed)
    killed.kill_engine_process()
    tally.wait_for_more(CLIENTS)
    apart.wait_until_ready_again(killed, before + 1)
    tally.wait_for_more(2 * CLIENTS)
    assert tally.wrong == []


@pytest.mark.full
def test_both_pools_are_rolled(apart: Apart, tally: Tally) -> None:
    before = {engine.name for engine in apart.engines(*ROLES)}
    apart.apply(chunkSize=64)
    after = {engine.name for engine in apart.engines(*ROLES)}
    assert len(after) == 4
    assert not before & after, "an engine of the former revision is left"
    assert tally.wrong == []


@pytest.mark.full
@pytest.mark.parametrize("role", ROLES)
def test_a_pool_is_scaled_in_and_out(apart: Apart, tally: Tally, role: Role) -> None:
    apart.apply(**{role.value: 1})
    assert poll(lambda: len(apart.engines(role)) == 1, REPLACED_SECONDS)
    tally.wait_for_more(CLIENTS)
    apart.apply()
    assert len(apart.engines(role)) == 2
    assert tally.wrong == []


@pytest.mark.full
def test_every_pod_is_evicted_in_turn(apart: Apart, tally: Tally) -> None:
    before = apart.pod_names()
    assert len(before) == 6, before
    for pod in before:
        assert poll(partial(apart.evict, pod), REPLACED_SECONDS), f"{pod} cannot be evicted"
        tally.wait_for_more(CLIENTS)
        assert tally.wrong == [], pod
    apart.service.wait_for("Updated", "True")
    assert poll(lambda: not set(before) & set(apart.pod_names()), REPLACED_SECONDS)


@pytest.mark.full
def test_the_mode_is_switched_to_mixed_and_back(apart: Apart, tally: Tally) -> None:
    apart.apply_mixed()
    assert len(apart.engines(Role.MIXED)) == 2
    assert poll(lambda: not apart.engines(*ROLES), REPLACED_SECONDS)
    tally.wait_for_more(2 * CLIENTS)
    assert tally.wrong == []
    apart.apply()
    assert poll(lambda: not apart.engines(Role.MIXED), REPLACED_SECONDS)
    assert tally.wrong == []


@pytest.mark.full
def test_a_pool_without_an_engine_is_named(apart: Apart, url: str) -> None:
    """Requests wait a while; their errors then name the pool. Decode engines never compute a prompt
    instead."""
    prompt, copied = make_prompt("copy", 64, seed=1)
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 80, "temperature": 0}
    apart.apply(prefill=0)
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        refused = client.post("/v1/completions", json=body)
        assert refused.status_code == 503
        assert "prefill" in refused.json()["error"]["message"]
        apart.apply()
        answered = client.post("/v1/completions", json=body)
    assert answered.json()["choices"][0]["text"] == copied
