"""Responses that break off in a private call: another engine's goes on where they stopped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import groupby, pairwise
from typing import Any

import pytest
import pytest_asyncio
from sluice_runtime.transport import private_endpoint

from tests.runtime.server.conftest import MODEL, Server, running_server
from tests.runtime.server.test_private_calls import KEY, after, events
from tests.runtime.server.test_reasoning_client import THOUGHT, thinking
from tests.runtime.server.test_responses import WEATHER
from tests.runtime.server.test_tools_client import TWO_CALLS, calling

__all__ = ["calling", "thinking"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESPONSES = "/v1/responses"
FIRST_GROUP = 5
"""Events up to the first delta, which are sent together with the comment before them."""
EVERY = pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.full)])
"""How many of the places where it may break off are tried: one in so many."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, key=KEY) as server:
            yield server


def folded(passed: list[str]) -> list[Any]:
    """What a client makes of the events: their kinds and items, the text of deltas joined."""
    read = [json.loads(one) for one in passed]
    numbers = [event["sequence_number"] for event in read]
    assert all(before < behind for before, behind in pairwise(numbers))
    found: list[Any] = []
    for key, group in groupby(read, lambda event: (event["type"], event.get("item_id"))):
        same = list(group)
        if key[0].endswith(".delta"):
            found.append([*key, "".join(event["delta"] for event in same)])
        else:
            found += [[*key, {k: v for k, v in e.items() if k != "sequence_number"}] for e in same]
    return found


@EVERY
@pytest.mark.parametrize(
    "asked",
    [
        {"input": "a€bcd€e"},
        {
            "input": "abcdefghijkl",
            "max_output_tokens": 9,
            "include": ["message.output_text.logprobs"],
        },
        {"input": f"Let me see.\n{TWO_CALLS}", "tools": [WEATHER]},
    ],
)
async def test_a_response_goes_on_from_every_group_of_events(
    calling: Server, asked: dict[str, Any], every: int
) -> None:
    body = {"model": MODEL, "stream": True, **asked}
    whole = await events(calling, RESPONSES, body)
    expected = folded(after(whole, len(whole) - 1).passed)
    last = expected[-1]
    ends = [n for n in range(FIRST_GROUP, len(whole)) if whole[n - 1].startswith(":")]
    cuts = [FIRST_GROUP, *ends]
    assert len(cuts) > 3
    for cut in cuts[::every]:
        before = after(whole, cut)
        if before.last:
            continue
        rest = await events(calling, RESPONSES, body, before.resume)
        more = after(rest, len(rest) - 1)
        assert folded(before.passed + more.passed) == expected, cut
        assert rest[-1] == "data: [DONE]"
    assert last[2]["response"]["status"] in ("completed", "incomplete")


@EVERY
async def test_reasoning_goes_on(thinking: Server, every: int) -> None:
    body = {"model": MODEL, "stream": True, "input": THOUGHT + "Two."}
    whole = await events(thinking, RESPONSES, body)
    expected = folded(after(whole, len(whole) - 1).passed)
    cuts = [n for n in range(FIRST_GROUP, len(whole)) if whole[n - 1].startswith(":")]
    assert len(cuts) > 5
    for cut in cuts[::every]:
        before = after(whole, cut)
        if not before.last:
            rest = await events(thinking, RESPONSES, body, before.resume)
            more = after(rest, len(rest) - 1)
            assert folded(before.passed + more.passed) == expected, cut


@EVERY
async def test_a_whole_response_is_the_same_wherever_it_broke(calling: Server, every: int) -> None:
    body = {"model": MODEL, "input": TWO_CALLS, "tools": [WEATHER]}
    sent = await events(calling, RESPONSES, body)
    (answer,) = after(sent, len(sent) - 1).passed
    for cut in range(1, len(sent) - 1, every):
        rest = await events(calling, RESPONSES, body, after(sent, cut).resume)
        again = json.loads(after(rest, len(rest) - 1).passed[0])
        assert again["output"] == json.loads(answer)["output"]
