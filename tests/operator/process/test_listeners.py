"""What probes and Prometheus are answered."""

from __future__ import annotations

import aiohttp
from sluice_contract.cluster.metrics import OPERATOR, PROCESS
from sluice_operator.informer.blocked import Access
from sluice_operator.kube.kinds import POD
from sluice_operator.process.listeners import Health, listening
from sluice_operator.process.metrics import OperatorMetrics

from e2e.cluster.ports import free_ports
from tests.operator.examples import service


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_alive_from_the_start_and_ready_when_told() -> None:
    health, (probes, metrics) = Health(), free_ports(2)
    async with listening("127.0.0.1", (probes, metrics), health, lambda: b""):
        assert await fetch(probes, "/healthz") == (200, "starting")
        assert (await fetch(probes, "/readyz"))[0] == 503
        health.state, health.ready = "standing by", lambda: True
        assert await fetch(probes, "/readyz") == (200, "standing by")
        assert (await fetch(probes, "/metrics"))[0] == 404
        health.blocked = lambda: "no right to list pods"
        assert await fetch(probes, "/readyz") == (503, "standing by: no right to list pods")
        assert await fetch(probes, "/healthz") == (200, "standing by"), "a restart would not help"


async def test_every_metric_of_the_contract_is_exposed() -> None:
    recorded = OperatorMetrics()
    recorded.reconciled("InferenceService", 0.1)
    recorded.failed("EnginePool", ValueError(), 0.1)
    recorded.wrote("apply", "services")
    recorded.leads(True)
    recorded.watch_depth("EnginePool", lambda: 3)
    recorded.blocked.follow(lambda: [Access("list", POD, None)])
    ready = {"type": "Ready", "status": "True", "reason": "Serving"}
    recorded.statuses.record(service(), {"conditions": [ready]})
    probes, metrics = free_ports(2)
    async with listening("127.0.0.1", (probes, metrics), Health(), recorded.exposition):
        status, text = await fetch(metrics, "/metrics")
    assert status == 200
    for metric in (*OPERATOR, *PROCESS):
        assert f"# TYPE {metric.name} {metric.kind}" in text
    assert 'sluice_operator_queue_depth{kind="EnginePool"} 3.0' in text
    assert "sluice_operator_leader 1.0" in text
    assert 'sluice_operator_blocked_kinds{kind="Pod",namespace="",verb="list"} 1.0' in text
    series = 'name="chat",namespace="default",reason="Serving",status="True",type="Ready"'
    assert f"sluice_operator_condition{{{series}}} 1.0" in text
