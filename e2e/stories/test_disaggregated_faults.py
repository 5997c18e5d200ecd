"""An SRE kills, evicts, rolls, scales and switches two pools under load; the application developer,
whose client does not retry, notices nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sluice_contract.labels import Role

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.engines import Engine, engines, poll, wait_until_idle
from e2e.stories.load import CLIENTS, Tally, load
from e2e.stories.service import NAMESPACE, Service, chat_service, disaggregated_service

IDLE_SECONDS = 30
REPLACED_SECONDS = 120
ROLES = (Role.PREFILL, Role.DECODE)
ENGINE = {"dtype": "float32", "kvPoolTokens": 16384, "drainSeconds": 30}


class Apart:
    """The service of these stories, and its load."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.service = Service(kubectl, "apart")

    def apply(self, prefill: int = 2, decode: int = 2, **engine: Any) -> None:
        """Returns when the service is as wanted."""
        manifest = disaggregated_service(
            "apart", prefill, decode, engine=ENGINE | engine, router={"replicas": 2}
        )
        self._apply(manifest)

    def apply_mixed(self) -> None:
        manifest = chat_service("apart", replicas=2, engine=ENGINE, router={"replicas": 2})
        self._apply(manifest)

    def engines(self, *roles: Role) -> list[Engine]:
        return [engine for role in roles for engine in engines(self.kubectl, self.service, role)]

    def pods(self) -> list[str]:
        """Names of all of its pods, routers too."""
        selector = f"serving.sluice.dev/service={self.service.name}"
        found = self.kubectl.run("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name")
        return [name.removeprefix("pod/") for name in found.split()]

    def restarts(self, engine: Engine) -> int:
        pod = self.kubectl.get("pod", engine.name, "-n", NAMESPACE)
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    def wait_until_ready_again(self, engine: Engine, restarts: int) -> None:
        """After its container was restarted so often."""
        assert poll(lambda: self.restarts(engine) >= restarts, REPLACED_SECONDS)
        self.kubectl.run(
            "wait", "--for=condition=Ready", f"pod/{engine.name}", "-n", NAMESPACE,
            f"--timeout={REPLACED_SECONDS}s",
        )  # fmt: skip

    def evict(self, pod: str) -> bool:
        """False when the disruption budget says: not now."""
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
    """Two engines in each pool, whatever the story before has left."""
    deployed.apply()
    return deployed


@pytest.fixture
def tally(cluster: Cluster, apart: Apart) -> Iterator[Tally]:
    """The load. When the story is over, no answer may have been wrong, and nothing be held."""
    with reach(cluster, NAMESPACE, apart.service.name) as url, load(url) as counted:
        counted.wait_for_more(2 * CLIENTS)
        yield counted
        counted.wait_for_more(2 * CLIENTS)
    assert counted.wrong == []
    apart.wait_until_idle(*ROLES)


def test_a_prefill_engine_is_killed(apart: Apart, tally: Tally) -> None:
    """Its requests go to another pair; restarted in place, under its old address, it serves."""
    killed, _ = apart.engines(Role.PREFILL)
    before = apart.restarts(killed)
    killed.kill()
    tally.wait_for_more(CLIENTS)
    apart.wait_until_ready_again(killed, before + 1)
    tally.wait_for_more(4 * CLIENTS)
    assert tally.wrong == []


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
    before = apart.pods()
    assert len(before) == 6, before
    for pod in before:
        assert poll(partial(apart.evict, pod), REPLACED_SECONDS), f"{pod} cannot be evicted"
        tally.wait_for_more(CLIENTS)
        assert tally.wrong == [], pod
    apart.service.wait_for("Updated", "True")
    assert poll(lambda: not set(before) & set(apart.pods()), REPLACED_SECONDS)


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
