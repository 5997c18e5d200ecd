"""Two operators: one acts; the other takes over, at once or when the first has died."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import aiohttp
import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE
from sluice_operator.process.lease import LEASE

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import OPERATOR_NAMESPACE, OPERATOR_USER
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import Cluster, State
from tests.operator.harness.plane import OWN_PLANE
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat, settled
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
LEASE_SECONDS = 6
"""Renewed in time by a process that waits seconds for its turn, too."""
NEVER_SECONDS = 600
"""Who waits for such a Lease to run out waits in vain."""


async def probe(operator: OperatorProcess, path: str) -> tuple[int, str]:
    url = operator.health_url + path
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def metric(operator: OperatorProcess, line: str) -> float:
    url = operator.metrics_url
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(line))


async def stands_by(operator: OperatorProcess) -> None:
    """Returns when it has started and found the Lease taken."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                if await probe(operator, "/healthz") == (200, "standing by"):
                    return
            except aiohttp.ClientConnectionError:
                assert operator.running, operator.log.read_text()
            await asyncio.sleep(0.05)


async def test_one_acts_and_a_dead_one_is_replaced(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    settings = {"SLUICE_LEASE_SECONDS": str(LEASE_SECONDS)}
    first = start_operator("first", **settings)
    await first.leads(cluster)
    second = start_operator("second", **settings)
    await stands_by(second)
    assert await probe(first, "/readyz") == (200, "leading")
    assert (await probe(second, "/readyz"))[0] == 200, "ready to take over"

    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    assert await metric(first, "sluice_operator_writes_total{") > 10
    assert await metric(first, "sluice_operator_leader ") == 1
    assert await metric(second, "sluice_operator_writes_total{") == 0
    assert await metric(second, "sluice_operator_reconcile_total{") == 0

    first.kill()
    await second.leads(cluster)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"router": {"replicas": 3}}})
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)


async def test_one_that_is_told_to_stop_hands_over_at_once(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    first = start_operator("first", SLUICE_LEASE_SECONDS=str(NEVER_SECONDS))
    await first.leads(cluster)
    second = start_operator("second", SLUICE_LEASE_SECONDS=str(NEVER_SECONDS))
    await stands_by(second)
    assert await first.terminate() == 0
    await second.leads(cluster)
    assert await second.terminate() == 0


async def test_a_standby_stops_when_told(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    first = start_operator("first")
    await first.leads(cluster)
    second = start_operator("second")
    await stands_by(second)
    assert await second.terminate() == 0
    lease = (await cluster.list(LEASE, namespace))["sluice-operator"]
    assert lease["spec"]["holderIdentity"] == "first"


async def test_one_that_has_lost_the_lease_ends(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator("first", SLUICE_LEASE_SECONDS=str(LEASE_SECONDS))
    await operator.leads(cluster)
    stolen = {"spec": {"holderIdentity": "thief"}}
    await cluster.patch(LEASE, namespace, "sluice-operator", stolen)
    assert await operator.exited() == 1
    assert "the lease is held by 'thief'" in operator.log.read_text()


@pytest.mark.parametrize("wakes_up", [True, False])
async def test_a_held_up_loop_keeps_the_lease_for_a_while_and_once_that_is_lost_writes_nothing(
    cluster: Cluster, namespace: str, start_operator: StartOperator, wakes_up: bool
) -> None:
    settings = {"SLUICE_LEASE_SECONDS": str(2 * LEASE_SECONDS)}
    first = start_operator("first", PROGRAM="tests.operator.harness.held_up", **settings)
    await first.leads(cluster)
    second = start_operator("second", **settings)
    await stands_by(second)
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    os.kill(first.pid, signal.SIGUSR1)
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": {"router": {"replicas": 3}}})
    await logs(first, "held up")
    renewed_at = (await cluster.list(LEASE, namespace))["sluice-operator"]["spec"]["renewTime"]

    def is_renewed(leases: State) -> bool:
        spec = leases["sluice-operator"]["spec"]
        return bool(spec["holderIdentity"] == "first" and spec["renewTime"] != renewed_at)

    await cluster.until(LEASE, namespace, is_renewed)
    await logs(first, "could not renew")
    if wakes_up:
        os.kill(first.pid, signal.SIGUSR2)
    assert await first.exited() == 1
    assert wakes_up or "the main loop does not end" in first.log.read_text()
    assert "sent late" not in first.log.read_text()
    await second.leads(cluster)
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)


async def logs(operator: OperatorProcess, text: str) -> None:
    """Returns when it has written `text` to its log."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while text not in operator.log.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_it_says_what_is_missing_and_ends(
    plane: ApiServer, start_operator: StartOperator
) -> None:
    operator = start_operator("first", SLUICE_WORKERS="none")
    assert await operator.exited() == 2
    assert 'SLUICE_WORKERS: "none" is not allowed' in operator.log.read_text()


@OWN_PLANE
async def test_it_uses_no_right_that_the_install_does_not_give(
    plane: ApiServer, cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    audit = AuditLog(plane.audit_log)
    operator = start_operator()
    await operator.leads(cluster)
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    calls = [call for call in audit.calls() if call.user == OPERATOR_USER]
    refused = {(call.verb, call.resource) for call in calls if call.code == 403}
    assert refused == set()
    assert {call.verb for call in calls if call.resource == "secrets"} == {"create"}
    assert OPERATOR_NAMESPACE not in {call.namespace for call in calls}
