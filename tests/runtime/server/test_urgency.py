"""Priority and routing key: from the client to the engine; so with its trace."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = {"model": MODEL, "prompt": "a", "max_tokens": 1}
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
HEADER = "X-Sluice-Routing-Key"


@pytest.mark.parametrize(
    ("fields", "headers", "priority", "key"),
    [
        ({}, {}, 0, ""),
        ({"priority": None}, {HEADER: ""}, 0, ""),
        ({"priority": 7}, {HEADER: "team-7/chat"}, 7, "team-7/chat"),
        ({"priority": -1_000_000}, {HEADER: "k" * 128}, -1_000_000, "k" * 128),
    ],
)
async def test_priority_and_routing_key_reach_the_engine(
    fields: dict[str, Any], headers: dict[str, str], priority: int, key: str, server: Server
) -> None:
    answer = await server.http.post("/v1/completions", json=BODY | fields, headers=headers)
    assert answer.status_code == 200
    (generate,) = server.engine.of(Generate)
    assert isinstance(generate, Generate)
    assert (generate.priority, generate.routing_key) == (priority, key)


@pytest.mark.parametrize(
    ("given", "taken"), [(TRACE, TRACE), ("", ""), ("00-0-0-00", ""), (f"{TRACE}-more", "")]
)
async def test_a_trace_reaches_the_engine(given: str, taken: str, server: Server) -> None:
    headers = {"Traceparent": given} if given else {}
    answer = await server.http.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200
    (generate,) = server.engine.of(Generate)
    assert isinstance(generate, Generate)
    assert generate.traceparent == taken
    assert generate.label == generate.request_id + (f" trace={'a' * 32}" if taken else "")


@pytest.mark.parametrize("priority", [1_000_001, 1.5, "high", True])
async def test_a_malformed_priority_is_refused(priority: object, server: Server) -> None:
    answer = await server.http.post("/v1/completions", json=BODY | {"priority": priority})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "priority"


@pytest.mark.parametrize("key", ["k" * 129, "two words", "a;b", "\xe9"])
async def test_a_routing_key_that_is_unfit_is_refused(key: str, server: Server) -> None:
    headers = {HEADER.encode(): key.encode("latin-1")}
    answer = await server.http.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == HEADER
