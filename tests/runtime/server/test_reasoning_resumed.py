"""Answers with reasoning that break off in a private call: none of it is lost or told twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from sluice_contract.wire.private_calls import MORE_LINE
from sluice_runtime.wire.endpoint import private_endpoint

from tests.runtime.server.conftest import MODEL, Server, running_server
from tests.runtime.server.test_private_calls import KEY, after, events
from tests.runtime.server.test_reasoning_client import thinking
from tests.runtime.server.test_responses_resumed import folded
from tests.runtime.server.test_tools_client import user

__all__ = ["thinking"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWER = "<think>\nOne, zwö.\n</think>\n\nTwo."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, key=KEY) as server:
            yield server


def told(passed: list[str]) -> dict[str, Any]:
    """What a client makes of the chunks of a chat."""
    found: dict[str, Any] = {"reasoning_content": "", "content": "", "usage": None}
    for chunk in map(json.loads, passed):
        found["usage"] = chunk["usage"] or found["usage"]
        for choice in chunk["choices"]:
            for key in ("reasoning_content", "content"):
                found[key] += choice["delta"].get(key, "")
    return found


async def test_a_chat_goes_on_from_everywhere(thinking: Server) -> None:
    route, usage = "/v1/chat/completions", {"include_usage": True}
    body = {"model": MODEL, "messages": user(ANSWER), "stream": True, "stream_options": usage}
    whole = await events(thinking, route, body)
    expected = told(after(whole, len(whole) - 1).passed)
    assert (expected["reasoning_content"], expected["content"]) == ("One, zwö.", "Two.")
    assert expected["usage"]["completion_tokens_details"] == {"reasoning_tokens": 27}
    cuts = [cut for cut in range(1, len(whole)) if not after(whole, cut).last]
    assert len(cuts) > 10
    for cut in cuts:
        before = after(whole, cut)
        rest = await events(thinking, route, body, before.resume)
        more = after(rest, len(rest) - 1)
        assert told(before.passed + more.passed) == expected, cut


async def test_a_response_goes_on_from_every_group_of_events(thinking: Server) -> None:
    route, body = "/v1/responses", {"model": MODEL, "stream": True, "input": ANSWER}
    whole = await events(thinking, route, body)
    expected = folded(after(whole, len(whole) - 1).passed)
    assert [event[0] for event in expected].count("response.reasoning_text.delta") == 1
    more_line = MORE_LINE.decode()
    ends = [n for n in range(1, len(whole)) if not whole[n - 1].startswith(more_line)]
    cuts = [cut for cut in ends if not after(whole, cut).last]
    assert len(cuts) > 5
    for cut in cuts:
        before = after(whole, cut)
        rest = await events(thinking, route, body, before.resume)
        more = after(rest, len(rest) - 1)
        assert folded(before.passed + more.passed) == expected, cut
