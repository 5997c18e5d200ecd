"""Both reconciles while adapters come and go: the ConfigMap changes, engines are asked, none is
made anew."""

from __future__ import annotations

import json
from dataclasses import replace

from sluice_contract.config.adapters import adapters_digest
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    SERVICE_CHILDREN,
    Manifest,
)
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.probes.adapters import FAILED_SECONDS, AdapterReports

from tests.operator.examples import service
from tests.operator.harness.memory_api import MemoryApi, reconciles_over
from tests.operator.probes.test_accelerators import LOAD
from tests.operator.statuses import condition
from tests.operator.virtual_time import FakeClock

SQL = {"name": "sql", "uri": "file:///loras/sql"}
LAW = {"name": "law", "uri": "file:///loras/law"}


class Installed:
    """An operator over an API server in memory, with one engine that loads what a test says."""

    def __init__(self) -> None:
        self.api, self.clock = MemoryApi((INFERENCE_SERVICE, *SERVICE_CHILDREN, POD)), FakeClock()
        client, clock = ApiClient(self.api, lambda verb, plural: None), self.clock
        self.service, pool = reconciles_over(client, clock)
        self.pool = replace(pool, observer=self._pools(client, clock))
        self.followed: Manifest = {}

    def _pools(self, client: ApiClient, clock: Clock) -> PoolObserver:
        async def fetch(url: str) -> bytes:
            return json.dumps(LOAD | self.followed).encode()

        return PoolObserver(client, None, AdapterReports(fetch, clock))

    async def reconciled(self) -> float | None:
        """Until nothing is written; when the pool is looked at again."""
        before, again = -1, None
        while before != len(self.api.writes):
            before = len(self.api.writes)
            await self.service(Key(INFERENCE_SERVICE.kind, "default", "chat"))
            again = await self.pool(Key(ENGINE_POOL.kind, "default", "chat-mixed"))
        return again

    def ask(self, *adapters: Manifest) -> None:
        model = {"uri": "dummy://tiny", "adapters": list(adapters)}
        self.api.edit(INFERENCE_SERVICE, "chat", {"model": model})

    def engine_starts(self) -> None:
        (deployment,) = self.deployments("mixed").values()
        template = deployment["spec"]["template"]
        ready = [{"type": "Ready", "status": "True"}]
        self.api.apply(POD, {
            "metadata": {"name": "engine", "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready},
        })  # fmt: skip

    def engine_follows(self, **failed: str) -> None:
        """It takes what the ConfigMap has now; then it is asked again."""
        self.clock.elapsed_seconds += FAILED_SECONDS
        text = self.api.objects[CONFIG_MAP, "chat-adapters"]["data"]["adapters.json"]
        names = [each["name"] for each in json.loads(text)["adapters"]]
        self.followed = {
            "adapters": {name: "key" for name in names if name not in failed},
            "adaptersFailed": failed,
            "adaptersFile": adapters_digest(text.encode()),
        }

    def deployments(self, part: str) -> dict[str, Manifest]:
        return {
            name: item
            for (kind, name), item in self.api.objects.items()
            if kind is DEPLOYMENT and part in name
        }

    def told(self) -> tuple[str, str]:
        status = self.api.objects[INFERENCE_SERVICE, "chat"]["status"]
        found = condition(status, "AdaptersLoaded")
        return found["reason"], found["message"]


async def test_adapters_come_and_go_without_a_revision() -> None:
    here = Installed()
    here.api.apply(INFERENCE_SERVICE, service() | {"status": {}})
    here.ask(SQL)
    await here.reconciled()
    assert here.told()[0] == "NoEngine"
    here.engine_starts()
    assert await here.reconciled() is not None, "it is asked again"
    assert here.told() == (
        "Loading",
        "Pool mixed: 0 of 1 ready engines have the adapters that are asked for.",
    )
    here.engine_follows()
    assert await here.reconciled() is None
    assert here.told()[0] == "Loaded"
    before = {name: item["spec"] for name, item in here.deployments("").items()}
    here.ask(SQL, LAW)
    await here.reconciled()
    assert here.told()[0] == "Loading"
    here.engine_follows(law="no folder")
    assert await here.reconciled() == FAILED_SECONDS
    reason, message = here.told()
    assert reason == "LoadFailed"
    assert message == "Pool mixed: law is not loaded in engine: no folder. The others are served."
    pool = here.api.objects[ENGINE_POOL, "chat-mixed"]
    assert pool["status"]["adapters"] == [
        {"name": "law", "loaded": 0, "failed": 1, "message": "no folder"},
        {"name": "sql", "loaded": 1, "failed": 0},
    ]
    here.engine_follows()
    assert await here.reconciled() is None
    assert here.told()[0] == "Loaded"
    here.ask()
    await here.reconciled()
    here.engine_follows()
    await here.reconciled()
    assert here.told()[0] == "Loaded"
    assert {name: item["spec"] for name, item in here.deployments("").items()} == before
