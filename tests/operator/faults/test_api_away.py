"""The API server away: for a moment, and for as long as the Lease does not survive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE, SERVICE

from e2e.cluster.controlplane_only import ControlPlane
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.plane import OWN_PLANE
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import chat_at_rest, comes_to_rest
from tests.operator.harness.scenery import settled

pytestmark = [pytest.mark.apiserver, OWN_PLANE]
StartOperator = Callable[..., OperatorProcess]


async def things_happen(cluster: Cluster, namespace: str) -> None:
    """As soon as the API server is back, and before the operator may have noticed."""
    await cluster.delete(SERVICE, namespace, "chat")
    edit = {"spec": {"router": {"replicas": 4}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", edit)


async def test_a_short_outage_costs_nothing(
    plane: ControlPlane, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator(SLUICE_LEASE_SECONDS="120")
    await chat_at_rest(cluster, namespace)
    plane.stop_apiserver()
    plane.start_apiserver()
    await things_happen(cluster, namespace)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await cluster.until(SERVICE, namespace, lambda found: "chat" in found)
    await comes_to_rest(cluster, namespace)
    assert operator.running, "the Lease outlives this"


@pytest.mark.parametrize(
    ("lease_seconds", "outage_seconds"),
    [(9, 0), pytest.param(15, 120, marks=[pytest.mark.full, pytest.mark.timeout(400)])],
)
async def test_an_outage_longer_than_the_lease_ends_the_process_and_the_next_waits(
    plane: ControlPlane,
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    lease_seconds: int,
    outage_seconds: float,
) -> None:
    settings = {"SLUICE_LEASE_SECONDS": str(lease_seconds)}
    operator = start_operator(**settings)
    await chat_at_rest(cluster, namespace)
    plane.stop_apiserver()
    assert await operator.exited() == 1
    assert "could not renew" in operator.log.read_text()
    started_again = start_operator(**settings)
    await asyncio.sleep(outage_seconds)
    plane.start_apiserver()
    await things_happen(cluster, namespace)
    await started_again.leads(cluster)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await cluster.until(SERVICE, namespace, lambda found: "chat" in found)
    await comes_to_rest(cluster, namespace)
    assert started_again.running
