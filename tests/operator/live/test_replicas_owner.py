"""Replicas pass from one owner to another without a moment at another number.

The reconciles are called directly, and nobody decides.
"""

from __future__ import annotations

import asyncio

import pytest
from sluice_contract.cluster.labels import FIELD_MANAGER
from sluice_operator.apply.events import EVENT
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.kube.kinds import DEPLOYMENT, ENGINE_POOL, INFERENCE_SERVICE, Manifest

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.rest import CountingTransport, Reconciler
from tests.operator.harness.scenery import chat

pytestmark = pytest.mark.apiserver
POOL = "chat-mixed"
ROUNDS = 4
"""Reconciles of both kinds, after which nothing more is to be written."""


def fixed(replicas: int) -> Manifest:
    return {"spec": {"autoscaling": None, "replicas": replicas}}


def scaled_by(provider: str) -> Manifest:
    scaling = {"provider": provider, "minReplicas": 1, "maxReplicas": 9}
    return {"spec": {"autoscaling": scaling, "replicas": None}}


async def test_a_prefill_pool_that_was_stopped_starts_again_for_whoever_scales_it(
    cluster: Cluster, namespace: str
) -> None:
    """A HorizontalPodAutoscaler is off while its target has 0 replicas, and starts nothing."""
    own = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    parts: Manifest = {"replicas": 2, "autoscaling": {"provider": "External"}, "prefill": own}
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **parts))
    await settle(cluster, namespace)
    numbers = {}
    for replicas in (0, 2):
        await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"replicas": replicas}})
        await settle(cluster, namespace)
        pools = await cluster.list(ENGINE_POOL, namespace)
        numbers[replicas] = {name: pool["spec"]["replicas"] for name, pool in pools.items()}
        owners = managers_of(pools["chat-prefill"], "replicas")
        assert owners == ({REPLICAS_MANAGER} if replicas else {FIELD_MANAGER})
    assert numbers[0] == {"chat-prefill": 0, "chat-decode": 0}
    assert numbers[2] == {"chat-prefill": 2, "chat-decode": 2}


class Numbers:
    """Every number of replicas that the EnginePool has, from the start until it is `last`."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.seen: list[int] = []
        self.watching = asyncio.Event()

    def __call__(self, pools: State) -> bool:
        number = pools[POOL]["spec"]["replicas"]
        if self.seen[-1:] != [number]:
            self.seen.append(number)
        self.watching.set()
        return bool(number == self.last)


async def settle(cluster: Cluster, namespace: str) -> None:
    for _ in range(ROUNDS):
        await Reconciler(cluster.transport).once(namespace)
    await Reconciler(CountingTransport(cluster.transport, refuse=True)).once(namespace)


async def edit(cluster: Cluster, namespace: str, change: Manifest) -> frozenset[str]:
    """Carries an edit of the service out; who owns the replicas then."""
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", change)
    await settle(cluster, namespace)
    return managers_of(await cluster.get(ENGINE_POOL, namespace, POOL), "replicas")


async def scale(cluster: Cluster, namespace: str, replicas: int) -> frozenset[str]:
    """What a HorizontalPodAutoscaler does."""
    body = {"spec": {"replicas": replicas}}
    await cluster.patch(ENGINE_POOL, namespace, POOL, body, "scale")
    await settle(cluster, namespace)
    return managers_of(await cluster.get(ENGINE_POOL, namespace, POOL), "replicas")


async def engines(cluster: Cluster, namespace: str) -> list[int]:
    found = await cluster.list(DEPLOYMENT, namespace)
    return [item["spec"]["replicas"] for name, item in found.items() if name != "chat-router"]


async def test_replicas_pass_from_the_spec_to_a_scaler_and_back_without_another_number(
    cluster: Cluster, namespace: str
) -> None:
    await cluster.create(INFERENCE_SERVICE, chat(namespace, replicas=3))
    await settle(cluster, namespace)
    numbers = Numbers(last=7)
    watch = asyncio.create_task(cluster.until(ENGINE_POOL, namespace, numbers, 60))
    await numbers.watching.wait()

    assert await edit(cluster, namespace, scaled_by("External")) == {REPLICAS_MANAGER}
    assert await scale(cluster, namespace, 5) == {"person"}
    assert await engines(cluster, namespace) == [5]
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert condition(pool, "Updated")["reason"] != "Edited"
    assert await edit(cluster, namespace, scaled_by("Internal")) == {"person", REPLICAS_MANAGER}
    assert await edit(cluster, namespace, fixed(4)) == {FIELD_MANAGER}
    assert await edit(cluster, namespace, scaled_by("External")) == {REPLICAS_MANAGER}
    assert await edit(cluster, namespace, fixed(7)) == {FIELD_MANAGER}
    assert await engines(cluster, namespace) == [7]

    await watch
    assert numbers.seen == [3, 5, 4, 7]
    events = (await cluster.list(EVENT, namespace)).values()
    assert {"ScaleReverted", "Repaired"}.isdisjoint(event["reason"] for event in events)


async def test_a_new_pool_begins_at_the_least_and_is_handed_over(
    cluster: Cluster, namespace: str
) -> None:
    spec = scaled_by("External")["spec"]
    del spec["replicas"]
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **spec))
    await settle(cluster, namespace)
    pool = await cluster.get(ENGINE_POOL, namespace, POOL)
    assert pool["spec"]["replicas"] == 1
    assert managers_of(pool, "replicas") == {REPLICAS_MANAGER}
