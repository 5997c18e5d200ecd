"""Adapters that come and go on a running service: engines are told, and none is restarted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from sluice_contract.cluster import labels, ports
from sluice_contract.config.adapters import adapters_digest
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    Manifest,
)

from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat, is_ready, play_controllers, until_recorded
from tests.operator.probes.test_accelerators import LOAD

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
ENGINE = "127.0.0.77"
"""An address of this host at which nobody else listens."""
NAME = "chat-adapters"
SQL = {"name": "sql", "uri": "file:///loras/sql"}
LAW = {"name": "law", "uri": "file:///loras/law"}


class FakeEngine:
    """Answers `GET /load`; has carried out what a test says."""

    def __init__(self) -> None:
        self.says: Manifest = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def load(_: web.Request) -> web.Response:
            return web.json_response(LOAD | self.says)

        app = web.Application()
        app.router.add_get("/load", load)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, ENGINE, ports.ENGINE_METRICS).start()
            yield
        finally:
            await runner.cleanup()

    def follow(self, file: str, **failed: str) -> None:
        """Loads all of the file but those that fail."""
        names = [str(each["name"]) for each in json.loads(file)["adapters"]]
        self.says = {
            "adapters": {name: "key" for name in names if name not in failed},
            "adaptersFailed": failed,
            "adaptersFile": adapters_digest(file.encode()),
        }


def says(status: str, reason: str) -> Any:
    """Whether the service says this of its adapters, and is as its spec asks."""

    def check(services: State) -> bool:
        found = condition(services["chat"], "AdaptersLoaded")
        told = (found.get("status"), found.get("reason"))
        return bool(is_ready()(services)) and told == (status, reason)

    return check


async def file_of(cluster: Cluster, namespace: str, *names: str) -> str:
    """The file that engines follow, as soon as it has these adapters."""

    def there(found: State) -> bool:
        data = (found.get(NAME) or {}).get("data") or {"adapters.json": '{"adapters": []}'}
        return [each["name"] for each in json.loads(data["adapters.json"])["adapters"]] == [*names]

    found = await cluster.until(CONFIG_MAP, namespace, there)
    return str(found[NAME]["data"]["adapters.json"])


async def made_of(cluster: Cluster, namespace: str) -> Manifest:
    """What would be other if something restarted, or a revision were recorded."""
    pods = await cluster.list(POD, namespace)
    deployments = await cluster.list(DEPLOYMENT, namespace)
    return {
        "pods": {name: pod["metadata"]["uid"] for name, pod in pods.items()},
        "deployments": {name: each["metadata"]["generation"] for name, each in deployments.items()},
        "revisions": sorted(await cluster.list(CONTROLLER_REVISION, namespace)),
    }


async def test_adapters_come_and_go_without_a_revision(
    cluster: Cluster, namespace: str, start_operator: StartOperator
) -> None:
    engine = FakeEngine()
    model = {"uri": "dummy://qwen3-tiny", "adapters": [SQL]}
    async with engine.running():
        start_operator()
        await cluster.create(INFERENCE_SERVICE, chat(namespace, model=model))
        await play_controllers(cluster, namespace)
        pods = await cluster.list(POD, namespace, f"{labels.ROLE}=mixed")
        for name in pods:
            await cluster.patch(POD, namespace, name, {"status": {"podIP": ENGINE}}, "status")
        engine.follow(await file_of(cluster, namespace, "sql"))
        await cluster.until(INFERENCE_SERVICE, namespace, says("True", "Loaded"))
        await until_recorded(cluster, namespace)
        before = await made_of(cluster, namespace)
        for adapters in ([SQL, LAW], [LAW], []):
            patch = {"spec": {"model": {"adapters": adapters}}}
            await cluster.patch(INFERENCE_SERVICE, namespace, "chat", patch)
            names = [str(each["name"]) for each in adapters]
            file = await file_of(cluster, namespace, *names)
            await cluster.until(INFERENCE_SERVICE, namespace, says("False", "Loading"))
            if adapters == [LAW]:
                engine.follow(file, law="no folder")
                found = await cluster.until(
                    INFERENCE_SERVICE, namespace, says("False", "LoadFailed")
                )
                message = condition(found["chat"], "AdaptersLoaded")["message"]
                assert "law is not loaded in" in message
                assert "no folder" in message
            engine.follow(file)
            await cluster.until(INFERENCE_SERVICE, namespace, says("True", "Loaded"))
            pools = await cluster.list(ENGINE_POOL, namespace)
            told = pools["chat-mixed"]["status"].get("adapters") or []
            loaded = {each["name"]: each["loaded"] for each in told}
            assert loaded == dict.fromkeys(names, 1)
        assert await made_of(cluster, namespace) == before
