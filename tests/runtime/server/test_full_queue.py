"""A full queue, and requests that can never fit into it: refused before they cost anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sluice_runtime.server import handler
from sluice_runtime.wire.messages import Abort, Generate, Heartbeat

from tests.runtime.server.conftest import MODEL, Server, until
from tests.runtime.server.fake_engine import MOST_QUEUED, MOST_RUNNING, load

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/completions"


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "a", **fields}


async def test_a_full_queue_is_a_429_with_retry_after(server: Server) -> None:
    server.engine.paused.set()
    server.engine.queued = 8
    first = server.openai.completions.create(model=MODEL, prompt="a")
    waiting = asyncio.ensure_future(first)
    await until(
        lambda: (
            server.service.client.load is not None
            and server.service.client.load.figures.queued_requests == 8
        )
    )
    response = await server.http.post(COMPLETIONS, json=completion())
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    error = response.json()["error"]
    assert error["code"] == "queue_full"
    assert "8 requests wait, 1 more come; allowed: " in error["message"]
    assert "(maxQueuedRequests)" in error["message"]
    server.engine.paused.clear()
    assert (await waiting).choices[0].text == "a"


async def test_a_full_queue_is_told_before_the_body_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.engine.paused.set()
    held = completion(n=MOST_RUNNING + MOST_QUEUED)
    waiting = asyncio.ensure_future(server.http.post(COMPLETIONS, json=held))
    await until(lambda: len(server.engine.running) == MOST_RUNNING + MOST_QUEUED)
    with monkeypatch.context() as patched:
        patched.delattr(handler, "read_body")
        refused = await server.http.post(COMPLETIONS, json=completion(prompt="a" * 200))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    server.engine.paused.clear()
    assert (await waiting).status_code == 200
    assert (await server.http.post(COMPLETIONS, json=completion())).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_more_choices_than_the_engine_can_ever_hold_are_a_400_and_not_a_429(
    server: Server, stream: bool
) -> None:
    most = MOST_RUNNING + MOST_QUEUED
    body = completion(n=most + 1, stream=stream)
    refused = await server.http.post(COMPLETIONS, json=body)
    assert refused.status_code == 400
    assert f"{most + 1} answers are not allowed; allowed: at most {most}" in refused.text
    assert not server.engine.running
    assert (await server.http.post(COMPLETIONS, json=completion(n=most))).status_code == 200


async def test_requests_up_to_the_limit_are_accepted_at_once_and_one_more_is_a_429(
    server: Server,
) -> None:
    """The engine has said nothing since it was idle: what was sent counts until it has ended."""
    server.engine.paused.set()
    most = MOST_RUNNING + MOST_QUEUED
    client = server.service.client
    asked = [server.http.post(COMPLETIONS, json=completion(n=2)) for _ in range(most // 2)]
    waiting = [asyncio.ensure_future(one) for one in asked]
    await until(lambda: len(server.engine.running) == most)
    client._receive(Heartbeat(load(0)))  # an old report does not make room
    refused = await server.http.post(COMPLETIONS, json=completion())
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    waiting.pop().cancel()
    await until(lambda: len(client._unfinished) == most - 2)
    waiting.append(asyncio.ensure_future(server.http.post(COMPLETIONS, json=completion(n=2))))
    await until(lambda: len(server.engine.running) == most)
    server.engine.paused.clear()
    assert [response.status_code for response in await asyncio.gather(*waiting)] == [200] * 6


@pytest.mark.parametrize("stream", [True, False])
async def test_the_choices_of_a_request_are_taken_together_or_not_at_all(
    server: Server, stream: bool
) -> None:
    server.engine.paused.set()
    held = MOST_RUNNING + MOST_QUEUED - 3
    first = asyncio.ensure_future(server.http.post(COMPLETIONS, json=completion(n=held)))
    await until(lambda: len(server.engine.running) == held)
    refused = await server.http.post(COMPLETIONS, json=completion(n=4, stream=stream))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert f"{held} requests run or wait, 4 more come" in refused.json()["error"]["message"]
    two = server.http.post(COMPLETIONS, json=completion(prompt=["a", "b"], n=2, stream=stream))
    assert (await two).status_code == 429
    last = asyncio.ensure_future(server.http.post(COMPLETIONS, json=completion(n=3, stream=stream)))
    await until(lambda: len(server.engine.running) == held + 3)
    assert len(server.engine.of(Generate)) == held + 3
    assert not server.engine.of(Abort)
    server.engine.paused.clear()
    assert [(await one).status_code for one in (first, last)] == [200, 200]
