"""A budget instead of pools, on a real API server: the split begins by the accelerator, and follows
what the router says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import ServiceLoad
from sluice_operator.apply.events import EVENT
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE

from tests.operator.autoscale.world import load, row
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.fake_router import fake_router
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import until_told
from tests.operator.harness.scenery import chat, play_controllers

pytestmark = pytest.mark.apiserver
BUDGET: Final = 6
SHRUNK_SECONDS: Final = 90.0
DEPLOYMENTS: Final = 3
BEHIND: Final = {"queued_work_seconds": 60.0, "queued_requests": 60, "queued_tokens": 60_000}


def split_of(pools: State) -> dict[str, int]:
    return {pool["spec"]["role"]: pool["spec"]["replicas"] for pool in pools.values()}


def loads(**prefill: Any) -> ServiceLoad:
    """Two prefill engines, which say `prefill`, and four decode engines with nothing to do."""
    computing = [row(f"prefill-{n}", role=Role.PREFILL, **prefill) for n in range(2)]
    answering = [row(f"decode-{n}", role=Role.DECODE) for n in range(4)]
    return load(*computing, *answering)


async def begins_as_a_split(cluster: Cluster, namespace: str) -> None:
    wanted: dict[str, Any] = {"autoscaling": {"gpuBudget": BUDGET}, "prefill": {}}
    wanted["accelerator"] = {"count": 1}
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **wanted))
    pools = await cluster.until(ENGINE_POOL, namespace, lambda found: len(found) == 2)
    assert split_of(pools) == {"prefill": 2, "decode": 4}
    found = await cluster.until(
        INFERENCE_SERVICE, namespace, lambda all_: condition(all_["chat"], "ScalingActive")
    )
    told = condition(found["chat"], "ScalingActive")["message"]
    assert f"{BUDGET} GPUs begin as 2 prefill and 4 decode engines" in told


async def test_a_service_without_pools_begins_as_a_split(
    cluster: Cluster, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    start_operator()
    await begins_as_a_split(cluster, namespace)


@pytest.mark.full
async def test_a_split_shrinks_where_it_is_idle(
    cluster: Cluster, namespace: str, start_operator: Callable[..., OperatorProcess]
) -> None:
    """After a minute without work for its engines, by the operator's own account."""
    start_operator()
    async with fake_router() as router:
        await begins_as_a_split(cluster, namespace)
        router.load = loads(**BEHIND)
        await play_controllers(cluster, namespace, DEPLOYMENTS, router.address)
        services = await cluster.until(INFERENCE_SERVICE, namespace, scales)
        began = seconds_of(condition(services["chat"], "ScalingActive")["lastTransitionTime"])
        pools = await cluster.until(
            ENGINE_POOL, namespace, lambda found: split_of(found)["decode"] < 4, 4 * SHRUNK_SECONDS
        )
        assert split_of(pools)["prefill"] == 2, "its engines come once those of decode have gone"
        await until_told(cluster, namespace, "Scaled")
        events = (await cluster.list(EVENT, namespace)).values()
        shrunk = min(seconds_of(e["eventTime"]) for e in events if e["reason"] == "Scaled")
        assert shrunk - began < SHRUNK_SECONDS


def scales(services: State) -> bool:
    """Whether the routers' reports are there to decide by."""
    return condition(services["chat"], "ScalingActive").get("status") == "True"


def seconds_of(text: str) -> float:
    """Unix time."""
    return datetime.fromisoformat(text).timestamp()
