"""Every expression about the operator has a value that is not 0 in a scene with a name: a real
Prometheus scrapes a real operator on a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    POD_DISRUPTION_BUDGET,
    Manifest,
)

from dashboards.alerts.operator import BLIND
from dashboards.pages import autoscaler
from dashboards.pages import operator as operator_page
from dashboards.rules import groups
from tests.dashboards.expressions import OF_OPERATOR
from tests.dashboards.pictures import draw_pages
from tests.dashboards.prometheus import Prometheus, Target, scraping
from tests.operator.autoscale.world import load, row
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.fake_router import FakeRouter, fake_router
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Proxy, Seen, proxying, status
from tests.operator.harness.scenery import chat, play_controllers

pytestmark = [pytest.mark.apiserver, pytest.mark.full]
StartOperator = Callable[..., OperatorProcess]
SCALED: Manifest = {"autoscaling": {"minReplicas": 1, "maxReplicas": 3}}
BUSY = load(row("engine", queued_work_seconds=30.0, queued_requests=30, queued_tokens=30_000))
LATER = [expr for expr in OF_OPERATOR if "absent(" in expr or BLIND in expr]
"""Of routers that are silent, and of an operator that is gone."""
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
}


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as found:
        found.load = load(row("engine"))
        yield found


@pytest.fixture
async def proxy(operator_kubeconfig: Path, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    async with proxying(operator_kubeconfig, tmp_path) as opened:
        yield opened


async def a_service_is_scaled(cluster: Cluster, namespace: str, router: FakeRouter) -> None:
    await cluster.create(INFERENCE_SERVICE, chat(namespace, **SCALED))
    await play_controllers(cluster, namespace, router_address=router.address)
    await cluster.until(INFERENCE_SERVICE, namespace, is_now("ScalingActive", "True"))
    router.load = BUSY
    await cluster.until(DEPLOYMENT, namespace, lambda found: 3 in _replicas(found))


async def no_node_has_room(cluster: Cluster, namespace: str) -> None:
    """For an engine that is to come; another one drains."""
    engine = next(name for name in await cluster.list(POD, namespace) if "router" not in name)
    pod = await cluster.get(POD, namespace, engine)
    for name, hold in (("chat-pending", []), ("chat-leaving", ["sluice.test/hold"])):
        metadata = {"name": name, "labels": pod["metadata"]["labels"], "finalizers": hold}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | {"namespace": namespace}}
        spec = {part: pod["spec"][part] for part in ("containers", "volumes")}
        await cluster.create(POD, body | {"spec": spec})
    pending = {"status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]}}
    await cluster.patch(POD, namespace, "chat-pending", pending, "status")
    for name, deployment in (await cluster.list(DEPLOYMENT, namespace)).items():
        seen = {"status": {"observedGeneration": deployment["metadata"]["generation"]}}
        await cluster.patch(DEPLOYMENT, namespace, name, seen, "status")
    await cluster.delete(POD, namespace, "chat-leaving")


async def routers_are_silent(cluster: Cluster, namespace: str, router: FakeRouter) -> None:
    router.load = None
    await cluster.until(INFERENCE_SERVICE, namespace, is_now("ScalingActive", "False"))


async def services_are_refused(cluster: Cluster, namespace: str) -> None:
    """One for its promise, one that wants GPUs that no node has."""
    refused = chat(namespace, "refused")
    refused["spec"]["slo"] = {"percentile": 90}
    await cluster.create(INFERENCE_SERVICE, refused)
    gpus = {"product": "NVIDIA-H200", "count": 1}
    await cluster.create(INFERENCE_SERVICE, chat(namespace, "gpus", accelerator=gpus))
    await cluster.until(INFERENCE_SERVICE, namespace, is_now("Stalled", "True", "refused"))


def is_now(kind: str, status: str, name: str = "chat") -> Callable[[State], bool]:
    return lambda found: condition(found[name], kind).get("status") == status


def _replicas(found: State) -> list[int]:
    return [each["spec"]["replicas"] for name, each in found.items() if "router" not in name]


def spoiled(proxy: Proxy, every: int = 10**9) -> None:
    """One kind may not be watched, and every so manieth write is answered 500."""
    numbers = iter(range(1, 10**9))

    def spoil(seen: Seen) -> web.Response | None:
        if seen.is_watch and seen.path.endswith(POD_DISRUPTION_BUDGET.plural):
            return status(403, "Forbidden")
        if seen.is_write and next(numbers) % every == 0:
            return status(500, "InternalError")
        return None

    proxy.spoil = spoil


@pytest.mark.timeout(300)
async def test_every_expression_is_seen_in_a_scene(
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    router: FakeRouter,
    proxy: tuple[Proxy, Path],
    tmp_path: Path,
) -> None:
    spoiled(proxy[0])
    # One worker for many keys, so that a scrape sees some that wait.
    crowded = {"SLUICE_WORKERS": "1", "SLUICE_RESYNC_SECONDS": "0.5"}
    operator = start_operator(KUBECONFIG=str(proxy[1]), **crowded)
    target = Target(operator.metrics_url.removesuffix("/metrics"), "sluice-operator-0", "")
    chosen = {"$namespace": namespace}
    with scraping(tmp_path / "prometheus", [target], groups(), chosen) as prometheus:
        began = time.time()
        await a_service_is_scaled(cluster, namespace, router)
        await no_node_has_room(cluster, namespace)
        spoiled(proxy[0], every=5)
        await services_are_refused(cluster, namespace)
        now = [expr for expr in OF_OPERATOR if expr not in LATER]
        unseen = await asyncio.to_thread(_unseen, prometheus, now, began)
        await routers_are_silent(cluster, namespace, router)
        draw_pages(prometheus, {autoscaler.UID, operator_page.UID}, began, time.time())
        await operator.terminate()
        unseen += await asyncio.to_thread(_unseen, prometheus, LATER, began)
    await cluster.patch(POD, namespace, "chat-leaving", {"metadata": {"finalizers": None}})
    assert unseen == []


def _unseen(prometheus: Prometheus, expressions: list[str], began: float) -> list[str]:
    """What has had no value but 0 since `began`, and gets none in a minute."""
    deadline = time.monotonic() + 60
    while True:
        left = [expr for expr in expressions if not prometheus.shows(expr, began, time.time())]
        if not left or time.monotonic() > deadline:
            return left
        expressions = left
        time.sleep(0.5)
