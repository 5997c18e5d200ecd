"""Router and engine keep the same ids, know a death from a refusal, and agree who closes first."""

from __future__ import annotations

import asyncio
import json

import pytest
from sluice_contract.http_errors import ENGINE_DIED
from sluice_contract.http_heads import IDLE_CONNECTION_SECONDS
from sluice_router import attempts, edge
from sluice_runtime.errors import EngineDiedError, UnavailableError
from sluice_runtime.server.failures import error_response
from sluice_runtime.server.http import Gate, GateMiddleware, HttpServer
from starlette.applications import Starlette
from starlette.testclient import TestClient

KEPT = ["client-7", "a.b_c:d", "1-67891233/abcdef", "Root=1-2@x", "QmFzZTY0+/==", "x" * 128]
REPLACED = ["", "x" * 129, "two words", "tab\t", "semi;colon", 'quote"d', "per%cent", "é"]


@pytest.mark.parametrize("given", KEPT)
def test_a_harmless_id_is_kept_by_both(given: str) -> None:
    assert edge.request_id(given) == given
    assert kept_by_engine(given) == given


@pytest.mark.parametrize("given", REPLACED)
def test_any_other_is_replaced_by_both(given: str) -> None:
    assert edge.request_id(given) != given
    assert kept_by_engine(given) != given


def test_an_id_that_the_router_makes_is_kept_by_the_engine() -> None:
    made = edge.request_id(None)
    assert kept_by_engine(made) == made


def kept_by_engine(given: str) -> str:
    client = TestClient(GateMiddleware(Starlette(), Gate()))
    return client.get("/", headers={b"x-request-id": given.encode()}).headers["x-request-id"]


def test_the_router_closes_idle_connections_long_before_an_engine_does() -> None:
    engine = HttpServer(Starlette())
    assert engine.config.timeout_keep_alive == IDLE_CONNECTION_SECONDS
    assert asyncio.run(keep_alive_seconds()) < IDLE_CONNECTION_SECONDS / 2


async def keep_alive_seconds() -> float:
    async with attempts.open_session(1.0) as session:
        connector = session.connector
        assert connector is not None
        seconds: float | None = connector._keepalive_timeout
        assert seconds is not None
        return seconds


def test_an_engine_says_when_it_had_the_request_as_it_died() -> None:
    died = error_response(EngineDiedError("the engine has failed"))
    assert (died.status_code, json.loads(bytes(died.body))["error"]["code"]) == (503, ENGINE_DIED)
    refused = error_response(UnavailableError("the server drains"))
    assert (refused.status_code, json.loads(bytes(refused.body))["error"]["code"]) == (
        503,
        "unavailable",
    )
