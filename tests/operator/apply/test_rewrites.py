"""Two writers of one field: what that costs, and who is told."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sluice_contract.cluster.labels import FIELD_MANAGER
from sluice_operator.apply.applier import Applier
from sluice_operator.apply.field_ownership import lost_fields
from sluice_operator.apply.plan import Plan
from sluice_operator.apply.ssa_diff import owned_fields
from sluice_operator.apply.status import COUNTS_SECONDS
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, Kind, Manifest

from tests.operator.harness.memory_cluster import KEY, MemoryCluster, running
from tests.operator.statuses import condition
from tests.operator.virtual_time import FakeClock

OBJECTS = json.loads((Path(__file__).parent / "live_objects.json").read_text())
ROUTER = "chat-router"


def leaves(owned: Manifest, steps: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    below = {key: inner for key, inner in owned.items() if key != "."}
    if not below and steps:
        yield steps
    for key, inner in below.items():
        yield from leaves(inner, (*steps, key))


def without(owned: Manifest, steps: tuple[str, ...]) -> Manifest:
    """The fields but one, as a server has them: nothing is left of a parent that is empty then."""
    first, *rest = steps
    others = {key: inner for key, inner in owned.items() if key != first}
    left = without(owned[first], tuple(rest)) if rest else {}
    return others | ({first: left} if left else {})


def with_fields(live: Manifest, fields: Manifest, rival: Manifest) -> Manifest:
    """`live` with these fields of the operator's, and others of another manager's."""
    entries = [
        entry | {"fieldsV1": fields} if entry["manager"] == FIELD_MANAGER else entry
        for entry in live["metadata"]["managedFields"]
    ]
    entries.append({"manager": "rival", "operation": "Update", "fieldsV1": rival})
    return live | {"metadata": live["metadata"] | {"managedFields": entries}}


def nested(steps: tuple[str, ...]) -> Manifest:
    fields: Manifest = {}
    for step in reversed(steps):
        fields = {step: fields}
    return fields


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_field_that_another_takes_over_is_named_with_its_manager(kind: str) -> None:
    desired, live = OBJECTS[kind]["desired"], OBJECTS[kind]["live"]
    assert lost_fields(desired, live) == ()
    owned = owned_fields(live, FIELD_MANAGER) or {}
    for steps in leaves(owned):
        if not (kept := without(owned, steps)):
            continue  # as if it had never been applied
        (lost,) = lost_fields(desired, with_fields(live, kept, nested(steps)))
        assert lost.managers == ("rival",)
        names = [step.partition(":")[2] for step in steps if step.startswith("f:")]
        assert f"{'.'.join(names)}.".startswith(re.sub(r"\[.*?\]", "", lost.path) + ".")
        for lost in lost_fields(desired, with_fields(live, kept, {})):
            assert lost.managers == (), "it was removed"


class Server:
    """Answers an apply with what it makes of it."""

    def __init__(self) -> None:
        self.applies = 0

    async def send(self, request: Request) -> Response:
        self.applies += 1
        return Response(200, copy.deepcopy(OBJECTS["Deployment"]["live"]))


async def test_the_cost_of_a_repair_is_bounded_however_often_another_writes() -> None:
    server, clock = Server(), FakeClock()
    applier = Applier(ApiClient(server, lambda verb, plural: None), clock)
    desired, live = OBJECTS["Deployment"]["desired"], OBJECTS["Deployment"]["live"]
    owned = owned_fields(live, FIELD_MANAGER) or {}
    steps = next(path for path in leaves(owned) if path[-1] == "f:image")
    edited = with_fields(live, without(owned, steps), nested(steps))
    for _ in range(720):
        await applier.carry_out(Plan(apply=(desired,)), [edited])
        clock.elapsed_seconds += 5
    assert 10 < server.applies <= 22, "9 until the pause is five minutes, then one for each"


async def rewritten(cluster: MemoryCluster, rounds: int) -> list[float]:
    """Another scales the routers as soon as it can; how long each repair has waited."""
    waited = []
    for _ in range(rounds):
        cluster.api.edit(DEPLOYMENT, ROUTER, {"replicas": 7}, manager="hpa")
        began, seconds = cluster.clock.monotonic(), await cluster.service(KEY)
        while cluster.routers == 7:
            assert seconds is not None
            cluster.clock.elapsed_seconds += seconds
            seconds = await cluster.service(KEY)
        waited.append(cluster.clock.monotonic() - began)
    return waited


async def test_the_first_repair_is_at_once_and_later_ones_wait_twice_as_long() -> None:
    cluster = await running()
    before = len(cluster.api.writes)
    assert await rewritten(cluster, 4) == [0, 1, 2, 4]
    applies = [w for w in cluster.api.writes[before:] if w.path.endswith(f"/{ROUTER}")]
    assert len(applies) == 4, "one for each round"


async def test_it_goes_on_is_told_with_field_and_manager_until_it_was_quiet_for_a_while() -> None:
    cluster = await running()
    await rewritten(cluster, 4)
    assert condition(cluster.status, "Updated")["reason"] != "Rewritten"
    await rewritten(cluster, 2)
    updated = condition(cluster.status, "Updated")
    assert (updated["status"], updated["reason"]) == ("False", "Rewritten")
    assert f"Deployment {ROUTER}: spec.replicas is rewritten by hpa" in updated["message"]
    assert condition(cluster.status, "Ready")["status"] == "True"
    assert condition(cluster.status, "Progressing")["status"] == "False"
    before = len(cluster.api.writes)
    seconds = await cluster.service(KEY)
    assert len(cluster.api.writes) == before
    assert seconds is not None
    cluster.clock.elapsed_seconds += seconds
    await cluster.reconciled()
    assert condition(cluster.status, "Updated")["status"] == "True"
    assert await rewritten(cluster, 1) == [0]


async def test_the_event_names_the_other_manager_and_comes_once() -> None:
    cluster = await running()
    await rewritten(cluster, 5)
    repairs = [e["note"] for e in cluster.api.events if e["reason"] == "ScaleReverted"]
    assert len(set(repairs)) == 1
    assert "spec.replicas (from 7 to 2) by hpa set back" in repairs[0]
    told = [e["note"] for e in cluster.api.events if e["reason"] == "Rewritten"]
    assert len(set(told)) == 1


async def test_a_change_of_the_spec_and_an_edit_of_another_field_do_not_wait() -> None:
    cluster = await running()
    await rewritten(cluster, 5)
    cluster.api.edit(DEPLOYMENT, ROUTER, {"progressDeadlineSeconds": 3}, manager="person")
    await cluster.service(KEY)
    assert cluster.api.objects[DEPLOYMENT, ROUTER]["spec"]["progressDeadlineSeconds"] != 3
    cluster.api.edit(DEPLOYMENT, ROUTER, {"replicas": 7}, manager="hpa")
    cluster.api.edit(INFERENCE_SERVICE, "chat", {"router": {"replicas": 3}})
    await cluster.service(KEY)
    assert cluster.routers == 3


async def test_engines_of_a_pool_are_told_there_and_on_the_service() -> None:
    cluster = await running()
    key = Key(ENGINE_POOL.kind, "default", "chat-mixed")
    (name,) = (name for name in cluster.names(DEPLOYMENT) if name != ROUTER)
    for _ in range(6):
        cluster.api.edit(DEPLOYMENT, name, {"progressDeadlineSeconds": 7}, manager="rival")
        seconds = await cluster.pool(key)
        cluster.clock.elapsed_seconds += seconds or 0.0
        await cluster.pool(key)
    await cluster.service(KEY)
    pool = cluster.api.objects[ENGINE_POOL, "chat-mixed"]["status"]
    for status in (pool, cluster.status):
        updated = condition(status, "Updated")
        assert updated["reason"] == "Rewritten"
        assert "spec.progressDeadlineSeconds is rewritten by rival" in updated["message"]


@pytest.mark.parametrize("kind", [INFERENCE_SERVICE, ENGINE_POOL])
async def test_a_status_that_another_writes_is_repaired_with_the_same_pauses(kind: Kind) -> None:
    cluster = await running()
    is_pool = kind == ENGINE_POOL
    name: str = "chat-mixed" if is_pool else "chat"
    reconcile: Reconcile = cluster.pool if is_pool else cluster.service
    key, applies = Key(kind.kind, "default", name), 0
    cluster.clock.elapsed_seconds += COUNTS_SECONDS
    for _ in range(8):
        cluster.api.edit(kind, name, {"summary": "9/9"}, manager="rival", section="status")
        before = len(cluster.api.writes)
        seconds = await reconcile(key)
        applies += len(cluster.api.writes) - before
        assert (seconds is not None) == (len(cluster.api.writes) == before)
        cluster.clock.elapsed_seconds += 1
    assert applies == 4, "after 0, 1, 3 and 7 seconds"
