"""Secrets with a key: made where there is none, and never read, changed or asked for in vain."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.apply.applier import Applier, ApplyOutcome
from sluice_operator.apply.key_secrets import MISSING_SECONDS
from sluice_operator.apply.plan import KeySecret, Plan
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError

from tests.operator.virtual_time import FakeClock

MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
        "name": "chat-handover",
        "namespace": "team",
        "labels": {labels.MANAGED_BY: "sluice-operator", labels.SERVICE: "chat"},
        "ownerReferences": [{"kind": "InferenceService", "name": "chat", "uid": "1"}],
    },
}
DRAWN = bytes(range(32))


class Secrets:
    """An API server that keeps Secrets; `refuses`: what it answers to all."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.stored: dict[str, dict[str, Any]] = {}
        self.refuses: tuple[int, str] | None = None
        self.patched = 200
        """Status of the answer to a patch."""

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        if request.method == "PATCH":
            return Response(self.patched, {"reason": "no", "message": "no"})
        assert isinstance(request.body, dict)
        name = request.body["metadata"]["name"]
        if self.refuses is not None:
            return Response(self.refuses[0], {"reason": self.refuses[1], "message": "no"})
        if name in self.stored:
            return Response(409, {"reason": "AlreadyExists", "message": "there is one"})
        self.stored[name] = request.body
        return Response(201, request.body)


@pytest.fixture
def server() -> Secrets:
    return Secrets()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def applier(server: Secrets, clock: FakeClock) -> Applier:
    client = ApiClient(server, lambda verb, plural: None)
    return Applier(client, clock, lambda count: DRAWN[:count])


def plan(waiting: str = "a", *, is_used: bool = False, is_lost: bool = False) -> Plan:
    return Plan(secrets=(KeySecret(MANIFEST, "key", waiting, is_used, is_lost),))


async def test_the_key_is_32_random_bytes_as_text(applier: Applier, server: Secrets) -> None:
    outcome = await applier.carry_out(plan(), ())
    assert outcome.refused == ()
    made = server.stored["chat-handover"]
    assert base64.b64decode(made["stringData"]["key"]) == DRAWN


async def test_each_secret_has_a_key_of_its_own(server: Secrets) -> None:
    for name in ("a", "b"):
        manifest = {**MANIFEST, "metadata": {"name": name, "namespace": "team"}}
        wanted = Plan(secrets=(KeySecret(manifest, "key", "a"),))
        await Applier(ApiClient(server, lambda verb, plural: None), FakeClock()).carry_out(
            wanted, ()
        )
    first, second = (server.stored[name]["stringData"]["key"] for name in ("a", "b"))
    assert first != second


async def test_one_that_is_there_stays_as_it_is(applier: Applier, server: Secrets) -> None:
    server.stored["chat-handover"] = {}
    outcome = await applier.carry_out(plan(), ())
    assert outcome == ApplyOutcome()
    assert server.stored["chat-handover"] == {}
    assert [request.method for request in server.requests] == ["POST"]


async def test_it_is_tried_once_for_each_state(applier: Applier, server: Secrets) -> None:
    server.stored["chat-handover"] = {}
    for waiting in ("", "a", "a", "b", "b", "", ""):
        await applier.carry_out(plan(waiting), ())
    assert len(server.requests) == 2
    await applier.carry_out(plan("b"), ())
    assert len(server.requests) == 3, "pods were there meanwhile"
    del server.stored["chat-handover"]
    await applier.carry_out(plan("c"), ())
    assert "chat-handover" in server.stored


async def test_one_that_pods_have_started_with_is_tried_once_others_stay_missing(
    applier: Applier, server: Secrets, clock: FakeClock
) -> None:
    for waiting in ("a", "b", "c"):
        outcome = await applier.carry_out(plan(waiting, is_used=True), ())
        assert outcome.look_again_seconds == MISSING_SECONDS - clock.elapsed_seconds
        clock.elapsed_seconds += MISSING_SECONDS / 4
    assert (await applier.carry_out(plan(""), ())).look_again_seconds is None
    clock.elapsed_seconds += MISSING_SECONDS
    outcome = await applier.carry_out(plan("d", is_used=True), ())
    assert outcome.look_again_seconds == MISSING_SECONDS, "none was missing meanwhile"
    assert server.requests == []
    clock.elapsed_seconds += MISSING_SECONDS
    assert await applier.carry_out(plan("d", is_used=True), ()) == ApplyOutcome()
    assert "chat-handover" in server.stored


async def test_one_that_was_just_made_is_not_tried_again_for_pods_that_start(
    applier: Applier, server: Secrets, clock: FakeClock
) -> None:
    for waiting in ("a", "b", "c"):
        await applier.carry_out(plan(waiting), ())
    assert len(server.requests) == 1
    server.stored.clear()
    clock.elapsed_seconds += MISSING_SECONDS
    await applier.carry_out(plan("c"), ())
    assert "chat-handover" in server.stored, "somebody has deleted it"


async def test_one_of_a_service_that_was_made_anew_does_not_wait(
    applier: Applier, server: Secrets
) -> None:
    await applier.carry_out(plan("a"), ())
    server.stored.clear()
    owners = [{"kind": "InferenceService", "name": "chat", "uid": "2"}]
    manifest = {**MANIFEST, "metadata": MANIFEST["metadata"] | {"ownerReferences": owners}}
    await applier.carry_out(Plan(secrets=(KeySecret(manifest, "key", "b"),)), ())
    assert "chat-handover" in server.stored


async def test_one_that_may_be_lost_is_tried_at_once(applier: Applier, server: Secrets) -> None:
    await applier.carry_out(plan(is_used=True, is_lost=True), ())
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [(403, "Forbidden"), (409, "Conflict")])
async def test_one_that_cannot_be_made_is_tried_again(
    applier: Applier, server: Secrets, answer: tuple[int, str]
) -> None:
    server.refuses = answer
    for _ in range(2):
        (refused,) = (await applier.carry_out(plan(), ())).refused
        assert isinstance(refused.error, ApiError)
        assert refused.error.reason == answer[1]
    assert len(server.requests) == 2
    server.refuses = None
    assert (await applier.carry_out(plan(), ())).refused == ()
    assert "chat-handover" in server.stored


@pytest.mark.parametrize("patched", [200, 403, 404, 422])
async def test_one_that_may_be_lost_is_taken_over_where_it_is_ours_and_has_no_owner(
    applier: Applier, server: Secrets, patched: int
) -> None:
    server.stored["chat-handover"], server.patched = {}, patched
    for _ in range(2):
        assert await applier.carry_out(plan(is_lost=True), ()) == ApplyOutcome()
    create, patch = server.requests
    assert (create.method, patch.method) == ("POST", "PATCH")
    assert patch.path == "/api/v1/namespaces/team/secrets/chat-handover"
    assert "as=PartialObjectMetadata;" in patch.accept, "the key is not in the answer"
    assert patch.body == [
        {
            "op": "test",
            "path": "/metadata/labels/app.kubernetes.io~1managed-by",
            "value": "sluice-operator",
        },
        {"op": "test", "path": "/metadata/labels/serving.sluice.dev~1service", "value": "chat"},
        {"op": "test", "path": "/metadata/ownerReferences", "value": None},
        {
            "op": "add",
            "path": "/metadata/ownerReferences",
            "value": MANIFEST["metadata"]["ownerReferences"],
        },
    ]


async def test_one_that_is_made_anew_needs_no_taking_over(
    applier: Applier, server: Secrets
) -> None:
    await applier.carry_out(plan(is_lost=True), ())
    assert [request.method for request in server.requests] == ["POST"]


async def test_it_is_taken_over_later_if_the_api_server_does_not_answer(
    applier: Applier, server: Secrets
) -> None:
    server.stored["chat-handover"], server.patched = {}, 503
    assert (await applier.carry_out(plan(is_lost=True), ())).interrupted is not None
    server.patched = 200
    assert (await applier.carry_out(plan(is_lost=True), ())).interrupted is None
    assert [request.method for request in server.requests] == ["POST", "PATCH"] * 2
