"""Secrets with a key: made where there is none, and never read, changed or asked for in vain."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from sluice_operator.apply.applier import Applier, Outcome
from sluice_operator.apply.plan import KeySecret, Plan
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError

from tests.operator.virtual_time import FakeClock

MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "chat-handover", "namespace": "team"},
}
DRAWN = bytes(range(32))


class Secrets:
    """An API server that keeps Secrets; `refuses`: what it answers to all."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.stored: dict[str, dict[str, Any]] = {}
        self.refuses: tuple[int, str] | None = None

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
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
def applier(server: Secrets) -> Applier:
    return Applier(
        ApiClient(server, lambda verb, plural: None), FakeClock(), lambda count: DRAWN[:count]
    )


def plan(waiting: str = "a") -> Plan:
    return Plan(secrets=(KeySecret(MANIFEST, "key", waiting),))


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
    assert outcome == Outcome()
    assert server.stored["chat-handover"] == {}
    assert [request.method for request in server.requests] == ["POST"]


async def test_it_is_tried_once_for_each_state(applier: Applier, server: Secrets) -> None:
    for waiting in ("", "a", "a", "b", "b", "", ""):
        await applier.carry_out(plan(waiting), ())
    assert len(server.requests) == 2
    await applier.carry_out(plan("b"), ())
    assert len(server.requests) == 3, "pods were there meanwhile"
    del server.stored["chat-handover"]
    await applier.carry_out(plan("c"), ())
    assert "chat-handover" in server.stored


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
