"""Messages that break off in a private call: another engine's goes on where they stopped."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import anthropic
import httpx2
import pytest

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_messages import MESSAGES, WEATHER, body, events_in
from tests.runtime.server.test_private_calls import after, events
from tests.runtime.server.test_reasoning_client import THOUGHT, thinking
from tests.runtime.server.test_responses_resumed import (
    CALLS,
    EVERY,
    TEXT_BETWEEN_CALLS,
    joined_anywhere,
    module_server,
    seen_at_every_byte,
    sent,
)
from tests.runtime.server.test_tools_client import calling

__all__ = ["calling", "module_server", "thinking"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]


def folded(stream: bytes) -> list[Any]:
    """What a client makes of the events: the text of one block's deltas is joined."""
    found: list[Any] = []
    for key, group in groupby(events_in(stream.decode()), _place):
        same = list(group)
        if key[0] == "content_block_delta":
            deltas = [dict(event["delta"]) for event in same]
            kind = {delta.pop("type") for delta in deltas}
            found.append([*key, kind, "".join(text for delta in deltas for text in delta.values())])
        else:
            found += same
    return found


def _place(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["type"], event.get("index"), event.get("delta", {}).get("type")


async def by_the_sdk(stream: bytes) -> Any:
    """What the official client makes of a stream; it raises for what is no whole stream."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers=headers, content=stream)
    )
    http = httpx2.AsyncClient(transport=transport)
    async with (
        anthropic.AsyncAnthropic(base_url="http://e", api_key="none", http_client=http) as claude,
        claude.messages.stream(**body()) as message,
    ):
        return (await message.get_final_message()).to_dict()


async def goes_on_from_every_byte(server: Server, asked: dict[str, Any], every: int) -> None:
    asked = {**asked, "stream": True}
    nothing, *states, whole = seen_at_every_byte(await sent(server, MESSAGES, asked))
    assert nothing.head.resume is None, "it is asked anew"
    assert whole.last
    expected = await by_the_sdk(whole.stream)
    assert len(states) > 4
    for state in [*states[:-2:every], *states[-2:]]:
        assert not state.last, "the last event comes with the comment that says so"
        rest = await sent(server, MESSAGES, asked, state.head.resume)
        stream = state.stream + seen_at_every_byte(rest)[-1].stream
        assert folded(stream) == folded(whole.stream), stream
        assert await by_the_sdk(stream) == expected, stream


async def is_the_same_joined_anywhere(server: Server, asked: dict[str, Any], every: int) -> None:
    whole, streams = await joined_anywhere(server, MESSAGES, {**asked, "stream": True}, every)
    expected = await by_the_sdk(whole)
    for stream in streams:
        assert folded(stream) == folded(whole), stream
        assert await by_the_sdk(stream) == expected, stream


STREAMED = pytest.mark.parametrize(
    "asked",
    [
        body("a€bcd€e"),
        body("abcdefghijkl") | {"max_tokens": 9},
        body("abcdefghijkl", stop_sequences=["zz", "hij"]),
        body(CALLS, tools=[WEATHER]),
        body(TEXT_BETWEEN_CALLS, tools=[WEATHER]),
    ],
    ids=["text", "cut", "stopped", "calls", "text between calls"],
)


@EVERY
@STREAMED
async def test_a_stream_is_the_same_wherever_tokens_are_joined(
    calling: Server, asked: dict[str, Any], every: int
) -> None:
    await is_the_same_joined_anywhere(calling, asked, every)


@EVERY
async def test_thinking_is_the_same_wherever_tokens_are_joined(
    thinking: Server, every: int
) -> None:
    await is_the_same_joined_anywhere(thinking, body(THOUGHT + "Two."), every)


@EVERY
@STREAMED
async def test_a_stream_cut_at_any_byte_is_one_whole_stream_for_the_official_sdk(
    calling: Server, asked: dict[str, Any], every: int
) -> None:
    await goes_on_from_every_byte(calling, asked, every)


@EVERY
async def test_thinking_cut_at_any_byte_goes_on(thinking: Server, every: int) -> None:
    await goes_on_from_every_byte(thinking, body(THOUGHT + "Two."), every)


@EVERY
async def test_a_whole_message_is_the_same_wherever_it_broke(calling: Server, every: int) -> None:
    asked = {"model": MODEL, **body(CALLS, tools=[WEATHER])}
    told = await events(calling, MESSAGES, asked)
    (answer,) = after(told, len(told)).passed
    for cut in range(1, len(told), every):
        rest = await events(calling, MESSAGES, asked, after(told, cut).resume)
        (again,) = after(rest, len(rest)).passed
        assert json.loads(again) == json.loads(answer)
