"""A service that answers goes on answering, unless it is scaled to 0 or deleted.

The operator's reconciles and its writes, over an API server in memory whose Deployments run pods:
random edits, scalings, evictions, refusals, mode switches, restarts and lost status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sluice_contract.cluster.labels import Role
from sluice_operator.api.conditions import PROGRESSING
from sluice_operator.api.service import mode_of, roles_of
from sluice_operator.apply.executor import executor
from sluice_operator.conditions.conditions import find
from sluice_operator.conditions.pods import is_draining, is_finished, is_ready
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    Manifest,
    controller_uid,
)
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.scaled import ScaledService
from sluice_operator.service.observe import ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile
from sluice_operator.service.rollout.lent_gpus import INTERRUPTS
from sluice_operator.service.rollout.surge import COMPLETE

from tests.examples import examples
from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.harness.pods_in_memory import BAD, KINDS, NAME, PodsInMemory, is_bad
from tests.operator.virtual_time import FakeClock

MOST = 4
GPUS = {"accelerator": {"count": 1}}


class Scaler:
    """What the autoscaler was told last."""

    def __init__(self) -> None:
        self.known: ScaledService | None = None

    def service_seen(self, _: Key, scaled: ScaledService | None) -> None:
        self.known = scaled

    def pool_seen(self, *_: Any) -> None: ...

    def forget(self, _: Key) -> None:
        self.known = None

    def last_scaling(self, _: Key) -> None:
        return None


class World(PodsInMemory, RuleBasedStateMachine):
    """People, an autoscaler and a cluster do what they like."""

    strategy = "Surge"
    budget: int | None = None
    least: int | None = None
    """None: the numbers of engines are fixed."""
    most = MOST

    @initialize(start=st.integers(1, 3), mode=st.sampled_from(["Mixed", "Disaggregated"]))
    def a_service_answers(self, start: int, mode: str) -> None:
        start, mode = min(start, self.most), mode if self.most > 1 else "Mixed"
        self.api, self.clock, self.pods_made = MemoryApi(KINDS), FakeClock(), 0
        self.is_scaled_to_zero = self.is_told = False
        self.spec = self._spec(mode, start)
        self.api.apply(INFERENCE_SERVICE, service(self.spec) | {"status": {}})
        self.restart()
        self.until_quiet()
        if self.least is not None:
            for role in Role:
                self.scale(role, start)
        self.until_quiet()
        assert self.answers()

    # What people do.

    @rule(image=st.sampled_from(["", "engine:2", "engine:3", BAD]))
    def edit_image(self, image: str) -> None:
        self.edit(slo=None, engine={"image": image} if image else {})

    @rule(replicas=st.integers(1, MOST), prefill=st.integers(1, MOST))
    def scale_by_hand(self, replicas: int, prefill: int) -> None:
        if self.least is None:
            self.edit(**self._pools(mode_of(self.spec), replicas, prefill))

    @rule(
        mode=st.sampled_from(["Mixed", "Disaggregated"]),
        replicas=st.integers(1, MOST),
        prefill=st.integers(1, MOST),
    )
    def switch(self, mode: str, replicas: int, prefill: int) -> None:
        self.edit(**self._pools(mode, replicas, prefill))

    @rule()
    def refuse(self) -> None:
        """A spec that contradicts itself, which only the operator sees."""
        engine = self.spec["engine"] | {"mixedChunk": False}
        self.edit(slo={"itlMilliseconds": 40}, engine=engine)

    @rule()
    def correct(self) -> None:
        self.edit(slo=None, engine={k: v for k, v in self.spec["engine"].items() if k == "image"})

    # What the cluster does.

    @rule(number=st.integers(0, 7))
    def evict(self, number: int) -> None:
        """Pods go only while others answer, as a disruption budget has it."""
        pods = [pod for pod in self.of(POD) if is_ready(pod)]
        if len(pods) > number:
            gone = pods[number]
            others = [pod for pod in pods if pod is not gone]
            if self.answers(others):
                self.end(gone)
                # Within milliseconds, before which no plan can know of it.
                self.controllers()

    @rule(count=st.integers(1, 4))
    def engines_start(self, count: int) -> None:
        waiting = [pod for pod in self.of(POD) if not is_ready(pod) and not is_bad(pod)]
        waiting = [pod for pod in waiting if not (is_draining(pod) or is_finished(pod))]
        for pod in waiting[:count]:
            self.get_ready(pod)

    @rule()
    def a_deadline_passes(self) -> None:
        for item in self.of(DEPLOYMENT):
            if (item.get("status") or {}).get("readyReplicas", 0) < item["spec"]["replicas"]:
                late = {"type": "Progressing", "status": "False"}
                late["reason"] = "ProgressDeadlineExceeded"
                self.told(item, conditions=[late])

    @rule(lost=st.sampled_from(["router", "status", "record", "pool", "owners"]))
    def lose(self, lost: str) -> None:
        if lost == "status":
            self.api.objects[INFERENCE_SERVICE, NAME].pop("status", None)
        elif lost == "record":
            for revision in self.of(CONTROLLER_REVISION):
                self.api.delete(CONTROLLER_REVISION, revision["metadata"]["name"])
        elif lost == "pool":
            self.orphan_pools()
        elif lost == "owners":
            self.lose_owners({item["metadata"]["uid"] for item in self.of(INFERENCE_SERVICE)})
        elif self.answers():
            self.api.delete(DEPLOYMENT, f"{NAME}-router")

    def orphan_pools(self) -> None:
        """Somebody deletes the pools of the present mode with `--cascade=orphan`. Those of another
        mode cannot be made again."""
        roles = roles_of(mode_of(self.spec))
        pools = [pool for pool in self.of(ENGINE_POOL) if pool["spec"]["role"] in roles]
        self.lose_owners({pool["metadata"]["uid"] for pool in pools})
        for pool in pools:
            self.api.delete(ENGINE_POOL, pool["metadata"]["name"])
        self.one_reconcile(0)

    def lose_owners(self, uids: Collection[str]) -> None:
        """What these own is orphaned."""
        for (kind, _), item in list(self.api.objects.items()):
            if controller_uid(item) in uids:
                metadata = {k: v for k, v in item["metadata"].items() if k != "ownerReferences"}
                before = item | {"metadata": metadata}
                self.api._store(kind, before, before, metadata)

    @rule()
    def restart(self) -> None:
        client = ApiClient(self.api, lambda verb, plural: None)
        writes = executor(client, self.clock, "test", OperatorMetrics().statuses)
        kinds, volumes = OptionalKinds(client, self.clock), ImageVolumes(client, self.clock, "x")
        services = ServiceObserver(client, IMAGES, Nodes(client), kinds, volumes)
        self.scaler = Scaler()
        self.service = ServiceReconcile(services, writes, self.clock, self.scaler)
        self.pool = PoolReconcile(PoolObserver(client), writes, self.clock, self.scaler)

    # What the autoscaler does.

    @precondition(lambda self: self.least is not None)
    @rule(role=st.sampled_from(list(Role)), replicas=st.integers(0, MOST))
    def scale(self, role: Role, replicas: int) -> None:
        known = self.scaler.known
        if known is None or role not in known.pools:
            return
        limits = known.settings.pools[role]
        replicas = min(max(replicas, limits.minimum), limits.maximum)
        if not replicas:
            self.asleep_until_quiet(known)
            return
        self.edit_pool(known.pools[role].name, replicas)

    def edit_pool(self, name: str, replicas: int) -> None:
        """A pool that somebody has deleted cannot be scaled."""
        if (ENGINE_POOL, name) in self.api.objects:
            self.api.edit(ENGINE_POOL, name, {"replicas": replicas})

    def asleep_until_quiet(self, known: ScaledService) -> None:
        """All pools go to 0 engines, and come back."""
        for replicas in (0, 2):
            # Meanwhile the pools may be those of another form of the spec.
            known = self.scaler.known or known
            for pool in known.pools.values():
                self.edit_pool(pool.name, replicas)
            self.is_scaled_to_zero = not replicas
            self.until_quiet()
        assert self.answers() or self.is_broken(), "it does not wake"

    # What the operator does.

    @rule(steps=st.integers(1, 6))
    def reconcile(self, steps: int) -> None:
        for step in range(steps):
            self.one_reconcile(step)

    @rule()
    def until_quiet(self) -> None:
        for _ in range(30):
            before = len(self.api.writes), self.pods_made
            for step in range(4):
                self.one_reconcile(step)
            self.engines_start(99)
            self.controllers()
            if before == (len(self.api.writes), self.pods_made):
                break
        else:
            raise AssertionError("it never comes to rest")
        decides = not (self.spec.get("paused") or self.is_unknown())
        if decides and self.api.fails_at is None:
            unowned = [item for item in self.of(DEPLOYMENT) if controller_uid(item) is None]
            assert not unowned, "taken over, or gone"

    def one_reconcile(self, step: int) -> None:
        answered = self.answers()
        names = [NAME, *(f"{NAME}-{role}" for role in Role)]
        kind, name = (ENGINE_POOL if step % 4 else INFERENCE_SERVICE), names[step % 4]
        reconcile: Reconcile = self.pool if step % 4 else self.service
        self.carry_out(reconcile, Key(kind.kind, "default", name))
        self.controllers()
        status = self.api.objects[INFERENCE_SERVICE, NAME].get("status") or {}
        if (find(status, PROGRESSING) or {}).get("reason") == INTERRUPTS:
            self.is_told = True
        elif (status.get("rollout") or {}).get("reason") == COMPLETE:
            self.is_told = False
        if not (self.is_scaled_to_zero or self.may_be_interrupted() or self.is_unknown()):
            assert self.answers() or not answered, f"{kind.kind} {name} ended the service"

    def carry_out(self, reconcile: Reconcile, key: Key) -> None:
        """One reconcile."""
        asyncio.run(_awaited(reconcile(key)))

    # The promise.

    def is_broken(self) -> bool:
        """Whether the spec asks for engines that do not start, in a mode that was never complete
        with others."""
        return bool(self.spec["engine"].get("image") == BAD)

    def may_be_interrupted(self) -> bool:
        """Whether an only engine may end for one that was not tried, as there is no room for both
        and the status has said so in this roll-out. An end that was decided is carried out after
        further edits."""
        has_room = self.strategy == "Surge" and (self.budget is None or self.budget > 2)
        return not has_room and self.is_told

    def is_unknown(self) -> bool:
        """Whether nothing says how to make routers again: the spec is refused, and all revisions
        were deleted."""
        return "mixedChunk" in self.spec["engine"] and not self.of(CONTROLLER_REVISION)

    # The spec.

    def edit(self, **sections: Any) -> None:
        found = self.spec | sections
        self.spec = {name: value for name, value in found.items() if value is not None}
        live = self.api.objects[INFERENCE_SERVICE, NAME]
        base = service({})["spec"]
        self.api._store(INFERENCE_SERVICE, live, live | {"spec": base | self.spec}, {})

    def _spec(self, mode: str, replicas: int) -> Manifest:
        pools = self._pools(mode, replicas)
        found = pools | {"engine": {}, "rollout": {"strategy": self.strategy}}
        return {name: value for name, value in found.items() if value is not None}

    def _pools(self, mode: str, replicas: int, prefill: int = MOST) -> Manifest:
        """The part of a spec with these pools; what is None is left out."""
        budget: Manifest = {} if self.budget is None else {"gpuBudget": self.budget}
        limits: Manifest = {"minReplicas": self.least, "maxReplicas": self.most}
        numbers = (min(replicas, self.most), min(prefill, self.most))
        if self.budget is not None and mode != "Mixed":  # as nothing keeps fixed numbers within it
            decode = max(1, min(numbers[0], self.budget - 1))
            numbers = (decode, max(1, min(numbers[1], self.budget - decode)))
        number, of_prefill = ({"replicas": n} if self.least is None else {} for n in numbers)
        scaling = budget if number else limits | budget
        return {
            "replicas": None,
            "autoscaling": scaling or None,
            "prefill": None if mode == "Mixed" else of_prefill,
            **number,
            **(GPUS if budget else {}),
        }


async def _awaited(reconciled: Awaitable[float | None]) -> None:
    await reconciled


def made(strategy: str, budget: int | None, least: int | None, most: int = MOST) -> type:
    """The test of one kind of service."""
    values = {"strategy": strategy, "budget": budget, "least": least, "most": most}
    name = f"Test{strategy}, budget {budget}, at least {least}"
    machine = type(name, (World,), values)
    machine.TestCase.settings = examples(40, stateful_step_count=25)  # type: ignore[attr-defined]
    return pytest.mark.process(machine.TestCase)  # type: ignore[attr-defined, no-any-return]


TestSurge = made("Surge", None, None)
TestSurgeScaled = made("Surge", None, 0)
TestInPlace = made("InPlace", None, None)
TestInPlaceScaled = made("InPlace", None, 1)
TestBudget = made("Surge", 4, 1)
TestFixedBudget = made("Surge", 4, None)
TestOneGpu = made("Surge", 1, None, most=1)
TestWideBudget = made("Surge", 8, 0)


@pytest.mark.process
def test_a_form_that_is_taken_back_at_once_is_interrupted_only_after_it_was_told() -> None:
    """Pools of the other form are there, and the routers use the ones that serve."""
    values = {"strategy": "InPlace", "least": 1}
    world: World = type("TakenBack", (World,), values)()
    world.a_service_answers(1, "Disaggregated")
    world.switch("Mixed", 4, 2)
    world.reconcile(4)
    world.edit_image(BAD)
    world.switch("Disaggregated", 2, 2)
    world.reconcile(4)
    assert world.is_told
    assert world.answers(), "not yet"


@pytest.mark.process
def test_lost_routers_are_made_for_the_only_engines_that_serve() -> None:
    """Whose pools are gone, while those of the other form have not started."""
    world: World = type("LostRouters", (World,), {"budget": 8, "least": 0})()
    world.a_service_answers(1, "Disaggregated")
    world.switch("Mixed", 1, 1)
    world.lose("pool")
    world.switch("Disaggregated", 4, 1)
    for lost in ("status", "router", "pool"):
        world.lose(lost)
    assert world.answers()
