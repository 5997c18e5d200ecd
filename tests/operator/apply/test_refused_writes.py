"""Writes that the API server keeps refusing: what conditions and events say of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sluice_operator.apply.executor import executor
from sluice_operator.conditions.conditions import find
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.image_volumes import ImageVolumes
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.informer.optional_kinds import OptionalKinds
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
)
from sluice_operator.kube.transport import Request, Response
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.service.observe import ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile

from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.virtual_time import FakeClock

KINDS = (INFERENCE_SERVICE, *SERVICE_CHILDREN, POD)
CHILDREN = {
    INFERENCE_SERVICE: ("chat", "/deployments/chat-router"),
    ENGINE_POOL: ("chat-mixed", "/deployments/chat-mixed-"),
}
"""An object of each kind, and the path of a child."""


class Cluster(MemoryApi):
    """A service, of which writes below `refused_path` are answered with `refusal`."""

    def __init__(self) -> None:
        super().__init__(KINDS)
        self.refused_path: str | None = None
        self.refusal: Callable[[], Response] = lambda: Response(503, {})
        self.events: list[Manifest] = []
        self.clock = FakeClock()
        client = ApiClient(self, lambda verb, plural: None)
        writes = executor(client, self.clock, "test", OperatorMetrics().statuses)
        volumes = ImageVolumes(client, self.clock, "default")
        kinds = OptionalKinds(client, self.clock)
        services = ServiceObserver(client, IMAGES, Nodes(client), kinds, volumes)
        self.reconciles: dict[Kind, Reconcile] = {
            INFERENCE_SERVICE: ServiceReconcile(services, writes, self.clock),
            ENGINE_POOL: PoolReconcile(PoolObserver(client), writes, self.clock),
        }
        self.apply(INFERENCE_SERVICE, service() | {"status": {}})

    async def send(self, request: Request) -> Response:
        if request.path.endswith("/events"):
            self.events.append(request.body)
            return Response(201, request.body)
        refused = self.refused_path is not None and self.refused_path in request.path
        if refused and request.method != "GET":
            return self.refusal()
        return await super().send(request)

    async def reconcile(self, kind: Kind, seconds: float = 0.0) -> None:
        """Every two seconds, and at least once."""
        for _ in range(int(seconds / 2) + 1):
            self.clock.elapsed_seconds += 2
            with suppress(RequestError):
                await self.reconciles[kind](Key(kind.kind, "default", CHILDREN[kind][0]))

    def condition(self, kind: Kind, condition: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        status = self.objects[kind, CHILDREN[kind][0]].get("status")
        entry = find(status, condition) or dict.fromkeys(("status", "reason", "message"), "")
        return entry["status"], entry["reason"], entry["message"]

    def warnings(self) -> list[str]:
        return [event["note"] for event in self.events if event["reason"] == "ApplyFailed"]


def status_body(code: int, message: str) -> Response:
    body: dict[str, Any] = {"kind": "Status", "reason": "InternalError", "message": message}
    return Response(code, body)


@pytest.fixture(params=CHILDREN, ids=lambda kind: kind.kind)
async def refusing(request: pytest.FixtureRequest) -> tuple[Cluster, Kind]:
    cluster, kind = Cluster(), request.param
    if kind is ENGINE_POOL:
        await cluster.reconcile(INFERENCE_SERVICE)
    cluster.refused_path = CHILDREN[kind][1]
    return cluster, kind


async def test_a_webhook_whose_text_changes_makes_one_event(
    refusing: tuple[Cluster, Kind],
) -> None:
    cluster, kind = refusing
    texts = iter(range(1000))
    cluster.refusal = lambda: status_body(403, f"refused, request {next(texts)}")
    await cluster.reconcile(kind, seconds=40)
    assert next(texts) > 19, "it is tried again and again"
    assert cluster.condition(kind, "Updated")[1] == "ApplyFailed"
    (warning,) = cluster.warnings()
    assert warning == cluster.condition(kind, "Updated")[2]


async def test_an_apply_that_is_answered_500_for_long_is_told_once_and_tried_on(
    refusing: tuple[Cluster, Kind],
) -> None:
    cluster, kind = refusing
    tries = iter(range(1000))
    cluster.refusal = lambda: status_body(500, f"duplicate entries, try {next(tries)}")
    await cluster.reconcile(kind, seconds=20)
    assert cluster.condition(kind, "Updated")[1] != "ApplyFailed", "it may pass by itself"
    assert cluster.warnings() == []

    await cluster.reconcile(kind, seconds=60)
    status, reason, message = cluster.condition(kind, "Updated")
    assert (status, reason) == ("False", "ApplyFailed")
    assert "500 InternalError: duplicate entries" in message
    assert cluster.condition(kind, "Stalled")[:2] == ("True", "ApplyFailed")
    assert cluster.warnings() == [message]
    assert next(tries) > 35

    cluster.refused_path = None
    await cluster.reconcile(kind, seconds=2)
    assert cluster.condition(kind, "Updated")[1] != "ApplyFailed"
    assert cluster.condition(kind, "Stalled")[0] == "False"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/deployments/chat-router", Response(502, "<html>")),
        ("/deployments/chat-router", status_body(429, "slow down")),
        ("/inferenceservices/chat/status", status_body(500, "no")),
    ],
    ids=["no answer of the API server's", "too many requests", "the status itself"],
)
async def test_what_says_nothing_of_a_child_is_no_refusal(path: str, answer: Response) -> None:
    cluster = Cluster()
    cluster.refused_path, cluster.refusal = path, lambda: answer
    await cluster.reconcile(INFERENCE_SERVICE, seconds=120)
    assert cluster.condition(INFERENCE_SERVICE, "Updated")[1] != "ApplyFailed"
    assert cluster.warnings() == []


async def test_failures_with_a_success_between_them_do_not_add_up() -> None:
    cluster, kind = Cluster(), INFERENCE_SERVICE
    cluster.refusal = lambda: status_body(500, "leader changed")
    for replicas in range(1, 7):
        cluster.edit(kind, "chat", {"router": {"replicas": replicas}})
        cluster.refused_path = CHILDREN[kind][1]
        await cluster.reconcile(kind, seconds=10)
        cluster.refused_path = None
        await cluster.reconcile(kind)
    assert cluster.warnings() == []
