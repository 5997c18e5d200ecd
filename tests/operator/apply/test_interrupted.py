"""A repair is told although something went wrong after it."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.apply.executor import executor
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ConflictError, RequestError, UnavailableError
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest
from sluice_operator.manifests.metadata import DESIRED_HASH
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.process.metrics import OperatorMetrics

from tests.operator.examples import live, pool, pool_plan, service
from tests.operator.virtual_time import FakeClock


class Server:
    """A pool whose Deployment somebody has scaled. Fails at the first write of `fails_at`."""

    def __init__(self, fails_at: str, code: int) -> None:
        self.fails_at, self.code = fails_at, code
        self.told: list[str] = []
        deployment, self.budget = (live(manifest) for manifest in pool_plan().apply)
        self.deployment = deployment | {"spec": deployment["spec"] | {"replicas": 7}}

    async def send(self, request: Request) -> Response:
        if request.method == "GET":
            return Response(200, self.read(request.path))
        if request.path.endswith("/events"):
            self.told.append(request.body["reason"])
            return Response(201, request.body)
        if self.fails_at in request.path:
            return Response(self.code, {"reason": "No", "message": "not now"})
        return Response(200, live(request.body) | {"metadata": _later(request.body)})

    def read(self, path: str) -> Manifest:
        if path.endswith("/deployments"):
            return {"metadata": {}, "items": [self.deployment]}
        if path.endswith(("/poddisruptionbudgets", "/pods", "/nodes")):
            return {"metadata": {}, "items": []}
        return pool() if "/enginepools/" in path else service()


def _later(manifest: Manifest) -> dict[str, Any]:
    metadata: dict[str, Any] = manifest["metadata"]
    return metadata | {"uid": "child", "resourceVersion": "later"}


@pytest.mark.parametrize("fails_at", ["/poddisruptionbudgets/", "/status"])
@pytest.mark.parametrize(("code", "error"), [(409, ConflictError), (503, UnavailableError)])
async def test_a_repair_is_told_although_a_later_write_fails(
    fails_at: str, code: int, error: type[RequestError]
) -> None:
    server, clock = Server(fails_at, code), FakeClock()
    assert DESIRED_HASH in server.deployment["metadata"]["annotations"]
    client = ApiClient(server, lambda verb, plural: None)
    writes = executor(client, clock, "test", OperatorMetrics().statuses)
    reconcile = PoolReconcile(PoolObserver(client), writes, clock)
    with pytest.raises(error):
        await reconcile(Key(ENGINE_POOL.kind, "default", "chat-mixed"))
    assert server.told == ["ScaleReverted"]
