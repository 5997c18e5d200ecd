"""What Prometheus sees of a service: conditions and replicas, until it is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import pytest
from sluice_operator.kube.kinds import INFERENCE_SERVICE

from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat_that_serves
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def until_shown(operator: OperatorProcess, series: str, value: float | None) -> None:
    """Returns once the series has the value, or with None: once there is no such series."""
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
        while True:
            async with session.get(operator.metrics_url) as response:
                lines = (await response.text()).splitlines()
            found = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)]
            if found == ([] if value is None else [value]):
                return
            await asyncio.sleep(0.05)


async def test_conditions_and_replicas_are_shown_until_the_service_is_deleted(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator()
    await chat_that_serves(cluster, namespace)
    place = f'name="chat",namespace="{namespace}"'
    ready = f'sluice_operator_condition{{{place},reason="Serving",status="True",type="Ready"}}'
    desired = f'sluice_operator_pool_replicas{{{place},role="mixed",state="desired"}}'
    answering = f'sluice_operator_pool_replicas{{{place},role="mixed",state="ready"}}'
    await until_shown(operator, ready, 1)
    await until_shown(operator, answering, 1)
    scale = {"spec": {"replicas": 3}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", scale)
    await until_shown(operator, desired, 3)
    await until_shown(operator, answering, 1)
    await cluster.delete(INFERENCE_SERVICE, namespace, "chat")
    for series in (ready, desired, answering):
        await until_shown(operator, series, None)
