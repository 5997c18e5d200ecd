"""A namespace without rights, and a right that is taken away and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from sluice_operator.kube.kinds import INFERENCE_SERVICE, SERVICE

from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Seen, proxying, status
from tests.operator.harness.scenery import chat, settled
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


async def is_answered(operator: OperatorProcess, expected: tuple[int, str]) -> None:
    """Returns once /readyz answers so."""
    answer: tuple[int, str] | None = None
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as session:
        while answer != expected:
            await asyncio.sleep(0.2)
            async with session.get(f"{operator.health_url}/readyz") as response:
                answer = response.status, await response.text()


async def test_one_namespace_without_rights_keeps_no_other_from_being_served(
    cluster: Cluster,
    namespace: str,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    def gone_is_forbidden(seen: Seen) -> web.Response | None:
        return status(403, "Forbidden") if "/namespaces/gone/" in seen.path else None

    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        proxy.spoil = gone_is_forbidden
        operator = start_operator(KUBECONFIG=str(kubeconfig), SLUICE_NAMESPACES=f"{namespace},gone")
        await cluster.create(INFERENCE_SERVICE, chat(namespace))
        await cluster.until(INFERENCE_SERVICE, namespace, settled())
        await is_answered(operator, (503, "leading"))
        proxy.spoil = lambda seen: None
        await is_answered(operator, (200, "leading"))
        await cluster.delete(SERVICE, namespace, "chat")
        await cluster.until(SERVICE, namespace, lambda found: "chat" in found)
        assert operator.running


async def test_a_right_to_watch_that_was_taken_away_and_given_back_is_used_again(
    cluster: Cluster,
    namespace: str,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        operator = start_operator(KUBECONFIG=str(kubeconfig))
        await cluster.create(INFERENCE_SERVICE, chat(namespace))
        await cluster.until(INFERENCE_SERVICE, namespace, settled())

        def is_of_services(seen: Seen) -> bool:
            return seen.is_watch and seen.path.endswith("/services")

        broken = asyncio.Event()

        def cut(seen: Seen, line: bytes) -> bytes:
            if not is_of_services(seen) or broken.is_set():
                return line
            broken.set()
            return line[: len(line) // 2] + b"\n"

        proxy.spoil = lambda seen: status(403, "Forbidden") if is_of_services(seen) else None
        proxy.lines = cut
        await cluster.delete(SERVICE, namespace, "chat-mixed")
        await broken.wait()
        proxy.seen.clear()
        await proxy.until(lambda seen: sum(map(is_of_services, seen)) > 2)
        proxy.spoil = lambda seen: None
        await cluster.delete(SERVICE, namespace, "chat")
        await cluster.until(SERVICE, namespace, lambda found: len(found) == 2)
        assert operator.running
