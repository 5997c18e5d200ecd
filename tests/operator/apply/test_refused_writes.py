"""Writes that the API server keeps refusing: what conditions and events say of them, and that the
rest is carried out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any

import pytest
from sluice_operator.conditions.conditions import ABNORMAL, find
from sluice_operator.informer.dispatch import Dispatcher, Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.informer.workqueue import WorkQueue
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENGINE_POOL,
    HTTP_ROUTE,
    INFERENCE_POOL,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    OPTIONAL_CHILDREN,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
)
from sluice_operator.process.metrics import OperatorMetrics

from tests.operator.examples import service
from tests.operator.harness.memory_api import MemoryApi, reconciles_over
from tests.operator.virtual_time import FakeClock, FakeTimer
from tests.pairwise import matrix

KINDS = (INFERENCE_SERVICE, *SERVICE_CHILDREN, *OPTIONAL_CHILDREN, POD)
KIND = attrgetter("kind")
ROUTER, ENGINES = "/deployments/chat-router", "/deployments/chat-mixed-"
CHILDREN = {INFERENCE_SERVICE: ("chat", ROUTER), ENGINE_POOL: ("chat-mixed", ENGINES)}
"""An object of each kind, and the path of a child."""
ROUTE: Manifest = {
    "route": {"parentRefs": [{"name": "public"}], "hostnames": ["m.example.com"]},
    "inferencePool": {"endpointPickerRef": {"name": "picker", "port": 9002}},
}
"""With a promise beside it, a service has an object of each optional kind."""
SPEC: Manifest = {"router": ROUTE, "slo": {"itlMilliseconds": 50}}


TERMINATING = Response(
    403,
    {
        "kind": "Status",
        "reason": "Forbidden",
        "message": "unable to create new content in namespace default because it is being "
        "terminated",
        "details": {
            "causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}],
        },
    },
)
"""What API servers answer to any request that would create something in such a namespace."""


class Cluster(MemoryApi):
    """A service, of which writes to paths that contain one of `refused` are answered so; None: they
    are carried out."""

    def __init__(self, kinds: tuple[Kind, ...] = KINDS) -> None:
        super().__init__(kinds)
        self.refused: dict[str, Callable[[], Response] | None] = {}
        self.is_terminating = False
        """Whether its namespace is: then nothing can be created."""
        self.creations: list[str] = []
        """Those that were refused for that."""
        self.clock = FakeClock()
        services, pools = reconciles_over(ApiClient(self, lambda verb, plural: None), self.clock)
        self.reconciles: dict[Kind, Reconcile] = {INFERENCE_SERVICE: services, ENGINE_POOL: pools}
        self.apply(INFERENCE_SERVICE, service(SPEC) | {"status": {}})

    async def send(self, request: Request) -> Response:
        if self.is_terminating and self._creates(request):
            self.creations.append(request.path)
            return TERMINATING
        answer = next((found for path, found in self.refused.items() if path in request.path), None)
        if answer is not None and request.method != "GET":
            return answer()
        return await super().send(request)

    def _creates(self, request: Request) -> bool:
        addressed = self._addressed(request.path)
        is_new = addressed is None or addressed[:2] not in self.objects
        return request.method == "POST" or (request.method == "PATCH" and is_new)

    async def reconcile(self, kind: Kind, seconds: float = 0.0) -> None:
        """Every two seconds, and at least once."""
        for _ in range(int(seconds / 2) + 1):
            self.clock.elapsed_seconds += 2
            with suppress(RequestError):
                await self.reconciles[kind](Key(kind.kind, "default", CHILDREN[kind][0]))

    def condition(self, kind: Kind, condition: str) -> tuple[str, str, str]:
        """Status, reason and message."""
        status = self.objects[kind, CHILDREN[kind][0]].get("status")
        nothing = dict.fromkeys(("status", "reason", "message"), "")
        absent = nothing | {"status": "False"} if status and condition in ABNORMAL else nothing
        entry = find(status, condition) or absent
        return entry["status"], entry["reason"], entry["message"]

    def warnings(self) -> list[str]:
        return [event["note"] for event in self.events if event["reason"] == "ApplyFailed"]

    def told(self, reason: str) -> str:
        """The texts of events with this reason."""
        return " ".join(event["note"] for event in self.events if event["reason"] == reason)

    def engines(self) -> int:
        """That are asked for, of all revisions."""
        found = (
            item
            for (of, name), item in self.objects.items()
            if f"/{of.plural}/{name}".startswith(ENGINES)
        )
        return sum(item["spec"]["replicas"] for item in found)

    def has(self, kind: Kind, prefix: str = "chat") -> bool:
        return any(of == kind and name.startswith(prefix) for of, name in self.objects)


def numbered(code: int, message: str) -> Callable[[], Response]:
    """A refusal with another text each time."""
    numbers = itertools.count()
    return lambda: status_body(code, f"{message}, request {next(numbers)}")


def status_body(code: int, message: str) -> Response:
    body: dict[str, Any] = {"kind": "Status", "reason": "No", "message": message}
    return Response(code, body)


@pytest.mark.process
@pytest.mark.parametrize("kind", CHILDREN, ids=KIND)
@pytest.mark.parametrize(("code", "quiet_seconds"), [(403, 0), (500, 20), (409, 20)])
async def test_a_refusal_is_told_once_and_tried_on(
    kind: Kind, code: int, quiet_seconds: int
) -> None:
    """Other than a refusal, a failure and a conflict may pass by themselves."""
    cluster, tries = Cluster(), itertools.count()
    if kind is ENGINE_POOL:
        await cluster.reconcile(INFERENCE_SERVICE)
    cluster.refused[CHILDREN[kind][1]] = lambda: status_body(code, f"no, request {next(tries)}")
    if quiet_seconds:
        await cluster.reconcile(kind, quiet_seconds)
        assert cluster.condition(kind, "Updated")[1] != "ApplyFailed"
        assert cluster.warnings() == []

    await cluster.reconcile(kind, seconds=60)
    status, reason, message = cluster.condition(kind, "Updated")
    assert (status, reason) == ("False", "ApplyFailed")
    assert f"{code} No: no, request 0" in message, "in the words in which it was told first"
    assert cluster.condition(kind, "Stalled")[:2] == ("True", "ApplyFailed")
    assert cluster.warnings() == [message]
    assert next(tries) > 30

    cluster.refused.clear()
    await cluster.reconcile(kind, seconds=2)
    assert cluster.condition(kind, "Updated")[1] != "ApplyFailed"
    assert cluster.condition(kind, "Stalled")[0] == "False"


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (ROUTER, Response(502, "<html>")),
        (ROUTER, status_body(429, "slow down")),
        ("/inferenceservices/chat/status", status_body(500, "no")),
    ],
    ids=["no answer of the API server's", "too many requests", "the status itself"],
)
async def test_what_says_nothing_of_a_child_is_no_refusal(path: str, answer: Response) -> None:
    cluster = Cluster()
    cluster.refused[path] = lambda: answer
    await cluster.reconcile(INFERENCE_SERVICE, seconds=120)
    assert cluster.condition(INFERENCE_SERVICE, "Updated")[1] != "ApplyFailed"
    assert cluster.warnings() == []


async def test_failures_with_a_success_between_them_do_not_add_up() -> None:
    cluster, kind = Cluster(), INFERENCE_SERVICE
    for replicas in range(1, 7):
        cluster.edit(kind, "chat", {"router": {"replicas": replicas}})
        cluster.refused[ROUTER] = lambda: status_body(500, "leader changed")
        await cluster.reconcile(kind, seconds=10)
        cluster.refused.clear()
        await cluster.reconcile(kind)
    assert cluster.warnings() == []


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_full_quota_of_secrets_holds_back_only_pods_of_which_none_has_the_secret(
    is_there: bool,
) -> None:
    """A quota refuses also to make what exists."""
    cluster = Cluster()
    if is_there:
        await cluster.reconcile(INFERENCE_SERVICE)
        cluster.objects.pop((ENGINE_POOL, "chat-mixed"))
    cluster.refused["/secrets"] = lambda: status_body(403, "exceeded quota")
    await cluster.reconcile(INFERENCE_SERVICE, seconds=2)
    assert cluster.has(ENGINE_POOL) == is_there


@pytest.mark.parametrize(
    ("kind", "code"),
    matrix(OPTIONAL_CHILDREN, [403, 500], others=pytest.mark.full, together=1),
    ids=lambda value: getattr(value, "kind", None),
)
async def test_a_refused_optional_kind_is_told_apart_and_stops_nothing(
    kind: Kind, code: int
) -> None:
    """An HTTPRoute with `timeouts` is 500 for ever where the Gateway API is an older one."""
    cluster, path = Cluster(), f"/{kind.plural}/"
    cluster.refused[path] = numbered(code, "no such field")
    await cluster.reconcile(INFERENCE_SERVICE)
    assert cluster.has(DEPLOYMENT, "chat-router")
    assert cluster.has(ENGINE_POOL)
    assert cluster.condition(INFERENCE_SERVICE, "Updated")[1] == "Applying"
    assert cluster.condition(INFERENCE_SERVICE, "OptionalKindsApplied")[0] != "True"

    await cluster.reconcile(INFERENCE_SERVICE, seconds=40)
    status, reason, message = cluster.condition(INFERENCE_SERVICE, "OptionalKindsApplied")
    assert (status, reason) == ("False", "ApplyFailed")
    assert f"{path}chat" in message
    assert f"{code} No: no such field, request 0" in message
    for condition in ("Ready", "Updated", "Stalled"):
        assert cluster.condition(INFERENCE_SERVICE, condition)[1] != "ApplyFailed"
    assert cluster.objects[INFERENCE_SERVICE, "chat"]["status"]["appliedGeneration"] == 1
    objects = 2 if kind == POD_MONITOR else 1
    assert len(cluster.warnings()) == objects, "one for each object, not for each try"
    assert "ServiceAccount chat-engine" in cluster.told("Created")
    assert kind.kind not in cluster.told("Created"), "it was not"
    route = cluster.condition(INFERENCE_SERVICE, "RouteAccepted")[1]
    assert (route == "ApplyFailed") is (kind == HTTP_ROUTE)
    pool = cluster.condition(INFERENCE_SERVICE, "InferencePoolAccepted")[1]
    assert (pool == "ApplyFailed") is (kind == INFERENCE_POOL)
    if kind == INFERENCE_POOL:
        (rule,) = cluster.objects[HTTP_ROUTE, "chat"]["spec"]["rules"]
        assert rule["backendRefs"][0]["kind"] == "Service", "requests are answered all the same"

    cluster.refused.clear()
    await cluster.reconcile(INFERENCE_SERVICE, seconds=2)
    assert cluster.condition(INFERENCE_SERVICE, "OptionalKindsApplied")[:2] == ("True", "Applied")


async def test_of_a_service_without_objects_of_optional_kinds_nothing_is_said_of_them() -> None:
    cluster = Cluster(kinds=(INFERENCE_SERVICE, *SERVICE_CHILDREN, POD))
    await cluster.reconcile(INFERENCE_SERVICE)
    assert cluster.condition(INFERENCE_SERVICE, "OptionalKindsApplied")[0] == ""


async def a_running_service() -> Cluster:
    cluster = Cluster()
    for kind in CHILDREN:
        await cluster.reconcile(kind)
    return cluster


def scale(cluster: Cluster) -> None:
    """To six engines and three routers."""
    cluster.edit(INFERENCE_SERVICE, "chat", {"replicas": 6, "router": ROUTE | {"replicas": 3}})


@pytest.mark.parametrize(
    "kind", [POD_DISRUPTION_BUDGET, ROLE, SERVICE, NETWORK_POLICY, DEPLOYMENT], ids=KIND
)
async def test_engines_are_scaled_whatever_is_refused_beside_them(kind: Kind) -> None:
    cluster = await a_running_service()
    for child in (POD_DISRUPTION_BUDGET, ROLE, SERVICE):  # they are there no longer
        for name in [name for of, name in cluster.objects if of == child == kind]:
            cluster.delete(child, name)
    if kind is NETWORK_POLICY:  # it is there, and somebody has edited it
        cluster.edit(kind, "chat-engine", {"ingress": [{}]})
    path = f"/{kind.plural}/chat-router" if kind is DEPLOYMENT else f"/{kind.plural}/"
    cluster.refused[path] = numbered(403, "a policy forbids it")
    scale(cluster)
    for each in (*CHILDREN, *CHILDREN):
        await cluster.reconcile(each)
    assert cluster.engines() == 6
    assert cluster.condition(INFERENCE_SERVICE, "Updated")[1] == "ApplyFailed"
    assert "replicas from 1 to 6 (spec.replicas)" in cluster.told("Scaled")


@pytest.mark.parametrize("kind", [NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT, SECRET], ids=KIND)
async def test_pods_wait_for_what_they_need(kind: Kind) -> None:
    """Engines without their file would take the place of those that serve, and without a policy
    everybody could reach them."""
    cluster = Cluster()
    cluster.refused[f"/{kind.plural}"] = numbered(403, "a policy forbids it")
    await cluster.reconcile(INFERENCE_SERVICE)
    assert not cluster.has(ENGINE_POOL)
    assert not cluster.has(DEPLOYMENT)
    assert cluster.has(POD_DISRUPTION_BUDGET), "it goes on"
    cluster.refused.clear()
    await cluster.reconcile(INFERENCE_SERVICE)
    assert cluster.has(ENGINE_POOL)
    assert cluster.has(DEPLOYMENT)


async def test_a_binding_waits_for_its_role() -> None:
    """It would be refused, too, and that is no news."""
    cluster = Cluster()
    cluster.refused["/roles/"] = lambda: status_body(403, "a policy forbids it")
    await cluster.reconcile(INFERENCE_SERVICE)
    assert not cluster.has(ROLE_BINDING)
    assert cluster.has(ENGINE_POOL)
    assert len(cluster.warnings()) == 1


@pytest.mark.parametrize("replicas", [1, 2])
async def test_no_engine_that_serves_ends_for_one_that_is_refused(replicas: int) -> None:
    cluster, pools = Cluster(), {"replicas": replicas}
    cluster.edit(INFERENCE_SERVICE, "chat", pools)
    for each in CHILDREN:
        await cluster.reconcile(each)
    (before,) = (name for of, name in cluster.objects if of == DEPLOYMENT and "mixed" in name)
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = {"observedGeneration": 1} | dict.fromkeys(counts, replicas)
    cluster.apply(DEPLOYMENT, {"metadata": {"name": before}, "status": status}, "status")
    await cluster.reconcile(INFERENCE_SERVICE)
    engine, rollout = {"chunkSize": 64}, {"strategy": "InPlace"}
    cluster.edit(INFERENCE_SERVICE, "chat", {"engine": engine, "rollout": rollout})
    cluster.refused = {f"/{before}": None, ENGINES: numbered(403, "exceeded quota")}
    for each in (*CHILDREN, *CHILDREN):
        await cluster.reconcile(each)
    assert cluster.objects[DEPLOYMENT, before]["spec"]["replicas"] == replicas


async def test_of_several_refusals_the_first_is_named_and_each_has_an_event() -> None:
    cluster = Cluster()
    for path in ("/poddisruptionbudgets/", "/services/chat-mixed", ROUTER):
        cluster.refused[path] = numbered(403, "a policy forbids it")
    await cluster.reconcile(INFERENCE_SERVICE, seconds=40)
    status, reason, message = cluster.condition(INFERENCE_SERVICE, "Updated")
    assert (status, reason) == ("False", "ApplyFailed")
    assert "/services/chat-mixed: " in message, "in the order of the plan"
    assert message.endswith("; 2 more refused: see the events")
    assert len(cluster.warnings()) == 3


async def test_another_spec_is_told_anew() -> None:
    cluster = Cluster()
    cluster.refused[ROUTER] = numbered(403, "a policy forbids it")
    await cluster.reconcile(INFERENCE_SERVICE, seconds=10)
    scale(cluster)
    await cluster.reconcile(INFERENCE_SERVICE, seconds=10)
    assert [text.rpartition(" ")[2] for text in cluster.warnings()] == ["0", "6"]


async def test_an_api_server_that_is_away_ends_the_reconcile() -> None:
    cluster = Cluster()
    tries = itertools.count()
    cluster.refused["/serviceaccounts/"] = lambda: Response(503, f"{next(tries)}")
    await cluster.reconcile(INFERENCE_SERVICE)
    assert next(tries) == 1
    assert not cluster.has(DEPLOYMENT)


@pytest.mark.parametrize("refused", ["/poddisruptionbudgets/", "/networkpolicies/chat-mixed"])
async def test_what_engines_run_is_what_was_carried_out_whatever_else_is_refused(
    refused: str,
) -> None:
    """A spec that is refused later leaves it in place, not what was before it."""
    cluster = Cluster()
    await cluster.reconcile(INFERENCE_SERVICE, seconds=4)
    cluster.refused[refused] = lambda: status_body(403, "no")
    cluster.edit(INFERENCE_SERVICE, "chat", {"engine": {"image": "engine:2"}})
    await cluster.reconcile(INFERENCE_SERVICE)
    generation = cluster.objects[INFERENCE_SERVICE, "chat"]["metadata"]["generation"]
    cluster.edit(INFERENCE_SERVICE, "chat", {"engine": {"image": "engine:2", "dtype": "int3"}})
    await cluster.reconcile(INFERENCE_SERVICE)
    assert cluster.condition(INFERENCE_SERVICE, "Updated")[1] == "InvalidSpec"
    image = cluster.objects[ENGINE_POOL, "chat-mixed"]["spec"].get("image")
    assert image == "engine:2"
    status = cluster.objects[INFERENCE_SERVICE, "chat"]["status"]
    assert status["appliedGeneration"] == generation


async def test_a_record_that_is_refused_stops_nothing() -> None:
    cluster = Cluster()
    cluster.refused["/controllerrevisions/"] = lambda: status_body(403, "quota")
    await cluster.reconcile(INFERENCE_SERVICE, seconds=4)
    assert cluster.condition(INFERENCE_SERVICE, "Updated")[1] != "ApplyFailed"
    reason, message = cluster.condition(INFERENCE_SERVICE, "OptionalKindsApplied")[1:]
    assert (reason, "quota" in message) == ("ApplyFailed", True)
    cluster.edit(INFERENCE_SERVICE, "chat", {"engine": {"image": "engine:2"}})
    await cluster.reconcile(INFERENCE_SERVICE)
    assert cluster.objects[ENGINE_POOL, "chat-mixed"]["spec"]["image"] == "engine:2"


async def worked_off(cluster: Cluster, dispatcher: Dispatcher, queue: WorkQueue[Key]) -> None:
    """Reconciles what is there of the service, as the operator's workers do."""
    for kind, (name, _) in CHILDREN.items():
        if cluster.has(kind, name):
            queue.add(Key(kind.kind, "default", name))
    worker = asyncio.create_task(dispatcher.work())
    for _ in range(200):
        await asyncio.sleep(0)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_in_a_namespace_that_goes_nothing_is_told_but_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever its controller has deleted first: nothing can be made again, and nothing need be."""
    caplog.set_level("INFO", "sluice_operator")
    cluster, timer = await a_running_service(), FakeTimer()
    queue: WorkQueue[Key] = WorkQueue(timer)
    reconciles = {kind.kind: reconcile for kind, reconcile in cluster.reconciles.items()}
    dispatcher = Dispatcher(queue, reconciles, OperatorMetrics(), cluster.clock, lambda: 1.0)
    await worked_off(cluster, dispatcher, queue)
    events, stalled = len(cluster.events), cluster.condition(INFERENCE_SERVICE, "Stalled")
    caplog.clear()
    cluster.is_terminating = True
    children = [(kind, name) for kind, name in cluster.objects if kind not in CHILDREN]
    assert {kind for kind, _ in children} > {CONFIG_MAP, DEPLOYMENT, HTTP_ROUTE, SERVICE}
    for kind, name in (*children, (ENGINE_POOL, "chat-mixed")):
        before = len(cluster.creations)
        cluster.delete(kind, name)
        await worked_off(cluster, dispatcher, queue)
        assert len(cluster.creations) - before <= len(CHILDREN), "one for each reconcile"
        timer.advance(3600.0)
        assert queue.waiting() == frozenset(), "another try would be refused, too"
    assert cluster.creations
    assert len(cluster.events) == events
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.records[0].__dict__["fields"]["namespace"] == "default"
    assert cluster.condition(INFERENCE_SERVICE, "Stalled") == stalled
