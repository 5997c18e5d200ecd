"""Responses that break off in a private call: another engine's goes on where they stopped."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import httpx2
import openai
import pytest
import pytest_asyncio
from sluice_contract.wire.private_calls import CallHead, ChoiceSoFar, Resume
from sluice_router.resume import Progress
from sluice_router.sse import DONE, WholeEvents
from sluice_runtime.wire.endpoint import private_endpoint

from tests.runtime.server import test_tools_client
from tests.runtime.server.conftest import MODEL, Server, running_server
from tests.runtime.server.test_private_calls import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    KEY,
    after,
    call,
    events,
)
from tests.runtime.server.test_reasoning_client import THOUGHT, thinking
from tests.runtime.server.test_responses import WEATHER
from tests.runtime.server.test_tools_client import TWO_CALLS, calling, user

__all__ = ["calling", "thinking"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

RESPONSES = "/v1/responses"
EVERY = pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.full)])
"""How many of the states that a client may be left in are tried: one in so many."""


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


class Seen(NamedTuple):
    """What a client has when an engine breaks off."""

    stream: bytes
    """Without the router's comments."""
    head: CallHead
    """What the next engine is told."""
    last: bool
    """Whether only `[DONE]` is missing."""


async def sent(
    server: Server, path: str, body: dict[str, Any], resume: Resume | None = None
) -> bytes:
    response = await call(server, path, body, resume)
    assert response.status_code == 200, response.text
    return response.content


def seen_at_every_byte(whole: bytes) -> list[Seen]:
    """By a client of the router, wherever the stream breaks off; each state once."""
    progress, events = Progress(5, streams=True, charge=lambda _: None), WholeEvents()
    found = [Seen(b"", progress.head(), last=False)]
    for place in range(len(whole)):
        if data := events.feed(whole[place : place + 1]):
            passed = progress.read(data).data
            found.append(Seen(found[-1].stream + passed, progress.head(), progress.last_seen))
    return found


async def by_the_sdk(path: str, stream: bytes) -> Any:
    """What the official client makes of a stream; it raises for what is no whole stream."""
    assert stream.count(DONE) == 1
    assert stream.endswith(DONE)
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers=headers, content=stream)
    )
    http = httpx2.AsyncClient(transport=transport)
    async with openai.AsyncOpenAI(base_url="http://e/v1", api_key="none", http_client=http) as sdk:
        if path == RESPONSES:
            async with sdk.responses.stream(model=MODEL, input="") as response:
                events = [event async for event in response]
            assert events[0].type == "response.created"
            last = events[-1]
            assert last.type in ("response.completed", "response.incomplete")
            return last.response.to_dict()
        if path == CHAT:
            async with sdk.chat.completions.stream(model=MODEL, messages=user("")) as chat:
                async for _ in chat:
                    pass
            return (await chat.get_final_completion()).to_dict()
        chunks = await sdk.completions.create(model=MODEL, prompt="", stream=True)
        texts: dict[int, str] = {}
        async for chunk in chunks:
            for choice in chunk.choices:
                text = choice.text + (choice.finish_reason or "")
                texts[choice.index] = texts.get(choice.index, "") + text
        return texts


def data_of(stream: bytes) -> list[str]:
    """Of the events, without `[DONE]`."""
    return re.findall(r"^data: (\{.*)$", stream.decode(), re.MULTILINE)


async def goes_on_from_every_byte(
    server: Server, path: str, body: dict[str, Any], every: int
) -> None:
    body = {"model": MODEL, "stream": True, **body}
    nothing, *states, whole = seen_at_every_byte(await sent(server, path, body))
    assert nothing.head.resume is None, "it is asked anew"
    expected = await by_the_sdk(path, whole.stream)
    assert len(states) > 4
    for state in [*states[:-2:every], *states[-2:]]:
        stream = state.stream + DONE
        if not state.last:
            rest = await sent(server, path, body, state.head.resume)
            stream = state.stream + seen_at_every_byte(rest)[-1].stream
        if path == RESPONSES:
            assert folded(data_of(stream)) == folded(data_of(whole.stream)), stream
        assert await by_the_sdk(path, stream) == expected, stream


async def joined_anywhere(
    server: Server, path: str, body: dict[str, Any], every: int
) -> tuple[bytes, list[bytes]]:
    """A stream with a delta a token, and those of two deltas, wherever the second begins."""
    await sent(server, path, body)  # from now on its prompt is cached
    start = seen_at_every_byte(await sent(server, path, body))[-1].head.resume
    assert start is not None
    begun = Resume(start.start, [ChoiceSoFar() for _ in start.choices])
    whole = seen_at_every_byte(await sent(server, path, body, begun))[-1]
    assert whole.head.resume is not None
    streams = []
    for joined_at in range(1, max(len(c.ids) for c in whole.head.resume.choices), every):
        server.engine.joined_at = joined_at
        joined = seen_at_every_byte(await sent(server, path, body, begun))[-1]
        assert len(data_of(joined.stream)) < len(data_of(whole.stream))
        assert joined.head == whole.head
        streams.append(joined.stream)
    server.engine.joined_at = None
    return whole.stream, streams


async def is_the_same_joined_anywhere(
    server: Server, path: str, body: dict[str, Any], every: int
) -> None:
    body = {"model": MODEL, "stream": True, **body}
    whole, streams = await joined_anywhere(server, path, body, every)
    expected = await by_the_sdk(path, whole)
    for stream in streams:
        if path == RESPONSES:
            assert folded(data_of(stream)) == folded(data_of(whole)), stream
        assert await by_the_sdk(path, stream) == expected, stream


CALLS = f"Let me see.\n{TWO_CALLS}"
TEXT_BETWEEN_CALLS = f"{TWO_CALLS}\nThen.\n{TWO_CALLS}\nDone."
PATCH = {"type": "custom", "name": "patch"}
_PATCHED = '<tool_call>\n{"name": "patch", "arguments": {"input": "+ \\"é\\"\\n"}}\n</tool_call>'
TEXT_CALL = f"{_PATCHED}\n{TWO_CALLS}"


STREAMED = pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": "a€bcd€e"}),
        (
            RESPONSES,
            {
                "input": "abcdefghijkl",
                "max_output_tokens": 9,
                "include": ["message.output_text.logprobs"],
            },
        ),
        (RESPONSES, {"input": CALLS, "tools": [WEATHER]}),
        (RESPONSES, {"input": TEXT_BETWEEN_CALLS, "tools": [WEATHER]}),
        (RESPONSES, {"input": TEXT_CALL, "tools": [PATCH, WEATHER]}),
        (CHAT, {"messages": user(CALLS), "tools": [test_tools_client.WEATHER]}),
        (CHAT, {"messages": user("a€bc"), "logprobs": True}),
        (COMPLETIONS, {"prompt": ["a€b", "cd"], "n": 2}),
        (GENERATE, {"text": "a€bc"}),
    ],
    ids=[
        "text",
        "logprobs",
        "calls",
        "text between calls",
        "text-calls",
        "chat-calls",
        "chat",
        "completions",
        "generate",
    ],
)


@EVERY
@STREAMED
async def test_a_stream_is_the_same_wherever_tokens_are_joined(
    calling: Server, path: str, body: dict[str, Any], every: int
) -> None:
    await is_the_same_joined_anywhere(calling, path, body, every)


@EVERY
async def test_reasoning_is_the_same_wherever_tokens_are_joined(
    thinking: Server, every: int
) -> None:
    await is_the_same_joined_anywhere(thinking, RESPONSES, {"input": THOUGHT + "Two."}, every)


@EVERY
@STREAMED
async def test_a_stream_cut_at_any_byte_is_one_whole_stream_for_the_official_sdk(
    calling: Server, path: str, body: dict[str, Any], every: int
) -> None:
    await goes_on_from_every_byte(calling, path, body, every)


@EVERY
async def test_reasoning_cut_at_any_byte_goes_on(thinking: Server, every: int) -> None:
    await goes_on_from_every_byte(thinking, RESPONSES, {"input": THOUGHT + "Two."}, every)


@EVERY
async def test_a_whole_response_is_the_same_wherever_it_broke(calling: Server, every: int) -> None:
    body = {"model": MODEL, "input": TWO_CALLS, "tools": [WEATHER]}
    told = await events(calling, RESPONSES, body)
    (answer,) = after(told, len(told) - 1).passed
    for cut in range(1, len(told) - 1, every):
        rest = await events(calling, RESPONSES, body, after(told, cut).resume)
        again = json.loads(after(rest, len(rest) - 1).passed[0])
        assert again["output"] == json.loads(answer)["output"]
