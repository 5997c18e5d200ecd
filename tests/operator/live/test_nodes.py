"""Nodes of a real API server: heartbeats cost nothing; a change reaches those it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE, NODE
from sluice_operator.service.nodes import COLLECT_SECONDS

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.plane import OWN_PLANE
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Proxy, Seen, proxying, status
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, settled

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
StartOperator = Callable[..., OperatorProcess]
NAME = "gpu-node"
NAMES = ("with-gpu", "without")


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[str]:
    """A node with a GPU."""
    await cluster.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}})
    await heartbeat(cluster, "0", {"nvidia.com/gpu": "1"})
    yield NAME
    await cluster.delete(NODE, None, NAME)


async def heartbeat(cluster: Cluster, beat: str, allocatable: dict[str, str] | None = None) -> None:
    """A status update as kubelet sends it."""
    conditions = [{"type": "Ready", "status": "True", "reason": f"beat-{beat}"}]
    body = {"conditions": conditions} | ({"allocatable": allocatable} if allocatable else {})
    await cluster.patch(NODE, None, NAME, {"status": body}, "status")


async def reconciles(operator: OperatorProcess) -> float:
    """How many there were of InferenceServices."""
    async with aiohttp.ClientSession() as session, session.get(operator.metrics_url) as response:
        lines = (await response.text()).splitlines()
    counter = 'sluice_operator_reconcile_total{kind="InferenceService"'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(counter))


def is_verified_by_labels(services: State) -> bool:
    return bool(condition(services["with-gpu"], "AcceleratorVerified")["reason"] == "NodeLabels")


async def both_services(cluster: Cluster, namespace: str) -> None:
    await cluster.create(INFERENCE_SERVICE, chat(namespace, "with-gpu", accelerator={"count": 1}))
    await cluster.create(INFERENCE_SERVICE, chat(namespace, "without"))
    for name in NAMES:
        await cluster.until(INFERENCE_SERVICE, namespace, settled(name))


def lines_of_nodes(proxy: Proxy) -> list[bytes]:
    """Fills with what the watch of nodes is sent."""
    found: list[bytes] = []

    def note(seen: Seen, line: bytes) -> bytes:
        if seen.path == "/api/v1/nodes":
            found.append(line)
            proxy.note(Seen("WATCHED", seen.path, {}, ""))
        return line

    proxy.lines = note
    return found


async def test_a_heartbeat_concerns_no_service_and_a_label_those_with_such_a_device(
    cluster: Cluster,
    namespace: str,
    node: str,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        lines = lines_of_nodes(proxy)
        operator = start_operator(KUBECONFIG=str(kubeconfig))
        await both_services(cluster, namespace)
        for name in NAMES:
            await comes_to_rest(cluster, namespace, name)
        await proxy.until(lambda seen: any(e.is_watch and e.path.endswith("/nodes") for e in seen))
        before = await reconciles(operator)
        for beat in range(1, 6):
            await heartbeat(cluster, str(beat))
        await proxy.until(lambda _: len(lines) >= 5)
        await asyncio.sleep(COLLECT_SECONDS + 0.5)  # what follows from a change follows by then
        assert await reconciles(operator) == before
        labels = {"metadata": {"labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}}}
        await cluster.patch(NODE, None, node, labels)
        await cluster.until(INFERENCE_SERVICE, namespace, is_verified_by_labels)
        assert await reconciles(operator) > before


async def test_without_the_right_to_read_nodes_it_says_so_and_goes_on(
    cluster: Cluster,
    namespace: str,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        proxy.spoil = lambda seen: status(403, "Forbidden") if "/nodes" in seen.path else None
        operator = start_operator(KUBECONFIG=str(kubeconfig))
        await both_services(cluster, namespace)
        assert operator.log.read_text().count("nodes may not be followed") == 1
