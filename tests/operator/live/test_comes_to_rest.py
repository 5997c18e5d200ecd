"""A service that was edited at random, on a cluster that fails, comes to rest with its last spec;
and meanwhile no reconcile leaves fewer usable engines than the strategy promises.

The world of `test_goes_on_answering`, whose pods also drain and fail, on nodes that are lost, with
an API server that answers 503, and people who pause, edit pools and change strategy and budget.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sluice_contract.cluster import labels
from sluice_operator.api.conditions import UPDATED
from sluice_operator.api.service import mode_of
from sluice_operator.conditions.conditions import find
from sluice_operator.conditions.pods import is_draining, is_ready
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, POD, Manifest

from tests.examples import examples
from tests.operator.harness.pods_in_memory import NAME, image_of, role_of
from tests.operator.test_goes_on_answering import World

GOOD: Final = "engine:good"
NODES: Final = 2
DRAIN_STEPS: Final = 2
"""For which a pod that was told to go is still there."""
ROUNDS: Final = 120
"""More than any of these roll-outs takes."""


class UnkindWorld(World):
    """A cluster and people that do all that can happen."""

    is_changed = True
    """Whether people change strategy and budget."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving: dict[str, int] = {}
        """Steps after which each pod is gone."""
        self.lost: set[int] = set()
        """Nodes of which pods never leave."""
        self.least_asked = 0
        """The smallest size asked for of the smaller pool since its Deployments were as planned: an
        end that was decided may be carried out after a later edit."""

    # What people do.

    @precondition(lambda self: self.is_changed)
    @rule(strategy=st.sampled_from(["Surge", "InPlace"]))
    def choose_strategy(self, strategy: str) -> None:
        self.strategy = strategy
        self.edit(rollout={"strategy": strategy})

    @precondition(lambda self: self.is_changed)
    @rule(budget=st.sampled_from([None, 4, 5, 8]))
    def choose_budget(self, budget: int | None) -> None:
        self.budget = budget
        self.edit(**self._pools(mode_of(self.spec), *self._numbers()))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.edit(paused=paused or None)

    @rule(number=st.integers(0, 1))
    def edit_a_pool(self, number: int) -> None:
        pools = self.of(ENGINE_POOL)
        if number < len(pools):
            name = pools[number]["metadata"]["name"]
            self.api.edit(ENGINE_POOL, name, {"drainSeconds": 7})

    # What the cluster does.

    @rule(number=st.integers(0, 7))
    def a_pod_fails(self, number: int) -> None:
        """For good, as when it was evicted for its node's memory."""
        if number < len(pods := self.of(POD)):
            pods[number]["status"] = {"phase": "Failed"}
            self.controllers()

    @rule(node=st.integers(0, NODES - 1))
    def a_node_is_lost(self, node: int) -> None:
        self.lost.add(node)
        for pod in self.of(POD):
            if _node_of(pod) == node:
                self.end(pod)
        self.controllers()

    @rule(node=st.integers(0, NODES - 1))
    def a_node_is_removed(self, node: int) -> None:
        """Its pods go, and a node of the same name comes."""
        self.lost.discard(node)

    @rule(lost=st.sampled_from(["router", "status", "record"]))
    def lose(self, lost: str) -> None:
        super().lose(lost)
        self.controllers()

    @rule(path=st.sampled_from([None, "/enginepools", "/deployments", "/status", "/configmaps"]))
    def the_api_server_fails(self, path: str | None) -> None:
        self.api.fails_at = path

    @rule(number=st.integers(0, 3))
    def an_owner_is_lost(self, number: int) -> None:
        if number < len(children := [*self.of(DEPLOYMENT), *self.of(ENGINE_POOL)]):
            children[number]["metadata"].pop("ownerReferences", None)

    def end(self, pod: Manifest) -> None:
        if not is_draining(pod):
            pod["metadata"]["deletionTimestamp"] = self.clock.now().isoformat()
            self.leaving[pod["metadata"]["name"]] = DRAIN_STEPS

    def controllers(self) -> None:
        for pod in self.of(POD):
            name = pod["metadata"]["name"]
            if name in self.leaving and _node_of(pod) not in self.lost:
                self.leaving[name] -= 1
                if self.leaving[name] <= 0:
                    self.api.delete(POD, name)
        super().controllers()

    # What the operator does.

    def carry_out(self, reconcile: Reconcile, key: Key) -> None:
        before, size = self.usable_engines(), self.size()
        self.least_asked = size if self.is_carried_out() else min(size, self.least_asked)
        with suppress(RequestError):
            super().carry_out(reconcile, key)
        super().controllers()
        if not self.may_be_interrupted():
            after, promised = self.usable_engines(), min(before, self.promised())
            assert after >= promised, f"{key}: {after} of {before} engines are left"

    def promised(self) -> int:
        """Usable engines that the strategy promises, of services whose engines were all usable. An
        end that was decided under another strategy is carried out after it has changed."""
        is_beside = self.strategy == "Surge" and self.budget is None and not self.is_changed
        return min(self.size(), self.least_asked) - (not is_beside)

    def size(self) -> int:
        """Size of the smaller pool, as it is asked for."""
        sizes: list[int] = [pool["spec"]["replicas"] for pool in self.of(ENGINE_POOL)]
        for section in (self.spec, self.spec.get("prefill") or {}):
            sizes += [section["replicas"]] if "replicas" in section else []
        return min(sizes, default=0)

    def is_carried_out(self) -> bool:
        """Whether the Deployments have as many engines as their pools say."""
        planned = Counter[str]()
        for pool in self.of(ENGINE_POOL):
            for share in pool["spec"].get("revisions") or ():
                planned[f"{pool['metadata']['name']}-{share['name']}"] += share["replicas"]
        there = {d["metadata"]["name"]: d["spec"]["replicas"] for d in self.of(DEPLOYMENT)}
        return all(there.get(name, 0) <= count for name, count in planned.items())

    def usable_engines(self) -> int:
        """Engines that the routers can use, as the best of them finds them."""
        pods = [pod for pod in self.of(POD) if is_ready(pod)]
        routers = (pod for pod in pods if role_of(pod) == "router")
        return max((self.usable(router, pods) for router in routers), default=0)

    # The promise.

    def teardown(self) -> None:
        if not hasattr(self, "api"):
            return
        self.api.fails_at = None
        self.lost.clear()
        self.edit(paused=None, slo=None, engine={"image": GOOD})
        self.make_room()
        for _ in range(ROUNDS):
            for step in range(4):
                self.one_reconcile(step)
            self.engines_start(99)
            if self.is_complete():
                return
        status = self.api.objects[INFERENCE_SERVICE, NAME]["status"]
        raise AssertionError(f"not complete: {find(status, UPDATED)}, {status.get('rollout')}")

    def make_room(self) -> None:
        """A change of the form needs room for both forms, and no autoscaler asks for engines beyond
        the budget."""
        roles = {labels.Role.PREFILL, labels.Role.DECODE} if "prefill" in self.spec else {"mixed"}
        if {pool["spec"]["role"] for pool in self.of(ENGINE_POOL)} - roles:
            self.budget = None
            self.edit(**self._pools(mode_of(self.spec), *self._numbers()))
        for pool in self.of(ENGINE_POOL) if self.least is not None else ():
            self.api.edit(ENGINE_POOL, pool["metadata"]["name"], {"replicas": 2})

    def _numbers(self) -> tuple[int, int]:
        prefill = self.spec.get("prefill") or {}
        return self.spec.get("replicas", 1), prefill.get("replicas", 1)

    def is_complete(self) -> bool:
        """Whether all engines are of the last spec, and the status says so."""
        live = self.api.objects[INFERENCE_SERVICE, NAME]
        updated = find(live.get("status"), UPDATED) or {}
        if (updated.get("status"), updated.get("observedGeneration")) != (
            "True",
            live["metadata"]["generation"],
        ):
            return False
        engines = [pod for pod in self.of(POD) if role_of(pod) != "router" and is_ready(pod)]
        asked: int = sum(pool["spec"]["replicas"] for pool in self.of(ENGINE_POOL))
        assert {image_of(pod) for pod in engines} <= {GOOD}, "a former one serves beside it"
        assert len(engines) == asked, "the status is wrong"
        return True


def _node_of(pod: Manifest) -> int:
    name: str = pod["metadata"]["name"]
    return sum(name.encode()) % NODES


def made(strategy: str, budget: int | None, least: int | None, *, changes: bool = True) -> Any:
    """The test of services that begin with a strategy and a budget, or keep them."""
    values = {"strategy": strategy, "budget": budget, "least": least, "is_changed": changes}
    machine: Any = type(f"TestUnkind{strategy}{budget}{least}{changes}", (UnkindWorld,), values)
    machine.TestCase.settings = examples(15, stateful_step_count=30)
    return pytest.mark.process(machine.TestCase)


TestSurge = made("Surge", None, None, changes=False)
TestBudget = made("Surge", 4, None, changes=False)
TestInPlace = made("InPlace", None, None, changes=False)
TestScaled = made("Surge", 8, 1, changes=False)
TestAnyStrategy = made("Surge", 4, None)


@pytest.mark.process
def test_one_decode_engine_beside_three_of_prefill_under_a_full_budget_is_never_missed() -> None:
    """Pods drain, and GPUs are taken only when they have gone."""
    values = {"strategy": "Surge", "budget": 4, "is_changed": False}
    world: UnkindWorld = type("Prefill3Decode1", (UnkindWorld,), values)()
    world.a_service_answers(1, "Disaggregated")
    assert sorted(pool["spec"]["replicas"] for pool in world.of(ENGINE_POOL)) == [1, 3]
    world.teardown()
    assert not world.is_told


@pytest.mark.process
def test_engines_that_served_stay_for_those_of_an_edit_where_their_revision_was_deleted() -> None:
    """Engines that were not ready when the edit was planned stay, too."""
    world: UnkindWorld = type("LostRecord", (UnkindWorld,), {"is_changed": False})()
    world.a_service_answers(3, "Mixed")
    world.lose("record")
    world.a_node_is_lost(0)
    world.edit_image("engine:bad")
    world.engines_start(3)
    world.until_quiet()
    assert world.usable_engines() == 3
