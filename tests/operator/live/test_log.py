"""What the log of a real process says: what happened to which service, and nothing of probes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from sluice_operator.apply.events import EVENT
from sluice_operator.kube.kinds import DEPLOYMENT, INFERENCE_SERVICE

from tests.operator.harness.cluster import Cluster, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import until_told
from tests.operator.harness.scenery import DEPLOYMENTS, chat_that_serves

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def probe(operator: OperatorProcess, times: int) -> None:
    urls = [f"{operator.health_url}/healthz", f"{operator.health_url}/readyz", operator.metrics_url]
    async with aiohttp.ClientSession() as session:
        for url in urls * times:
            async with session.get(url) as response:
                assert response.status == 200


async def deployments_are_seen(cluster: Cluster, namespace: str, count: int) -> None:
    """So many Deployments exist, and their controller, which is not there, has noticed all."""
    found = await cluster.until(DEPLOYMENT, namespace, lambda each: len(each) == count)
    for name, deployment in found.items():
        seen = {"observedGeneration": deployment["metadata"]["generation"]}
        await cluster.patch(DEPLOYMENT, namespace, name, {"status": seen}, "status")


async def until_rolling_out(cluster: Cluster, namespace: str) -> None:
    """Returns once the service's roll-out is in an event, and in its status, too."""

    def recorded(events: dict[str, Any]) -> bool:
        about = [(e["reason"], e["regarding"]["kind"]) for e in events.values()]
        return ("RollingOut", INFERENCE_SERVICE.kind) in about

    def told(services: dict[str, Any]) -> bool:
        return bool(condition(services["chat"], "Updated")["reason"] == "RollingOut")

    await cluster.until(EVENT, namespace, recorded)
    await cluster.until(INFERENCE_SERVICE, namespace, told)


async def test_the_log_tells_each_change_of_a_service_in_a_line_and_no_probe(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator(SLUICE_LOG_FORMAT="json")
    await chat_that_serves(cluster, namespace)
    await probe(operator, times=20)

    async def edit(spec: dict[str, Any]) -> None:
        await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": spec})

    await edit({"replicas": 2})
    await until_told(cluster, namespace, "Scaled")
    await edit({"engine": {"image": "sluice/engine:other"}})
    await deployments_are_seen(cluster, namespace, DEPLOYMENTS + 1)
    await until_rolling_out(cluster, namespace)
    await edit({"slo": {"percentile": 90}})
    await until_told(cluster, namespace, "NotImplemented")
    assert await operator.terminate() == 0

    lines = [json.loads(line) for line in operator.log.read_text().splitlines()]
    assert not [line for line in lines if "healthz" in str(line) or "/metrics" in str(line)]
    happened = [
        (line["event"], line["service"], line["level"])
        for line in lines
        if line.get("kind") == INFERENCE_SERVICE.kind
    ]
    for event, level in (("Scaled", "info"), ("RollingOut", "info"), ("NotImplemented", "warning")):
        assert happened.count((event, "chat", level)) == 1, happened
    scaled = next(line for line in lines if line["event"] == "Scaled")
    assert "from 1 to 2" in scaled["message"]
    assert [line["event"] for line in lines if "lease" in line] == [
        "leading",
        "leadership given up",
    ]
