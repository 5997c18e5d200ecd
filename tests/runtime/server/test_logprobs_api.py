"""Logprobs as the `openai` client reads them: tokens, bytes, offsets; whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionTokenLogprob
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.fake_engine import CONTEXT_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT: Any = [{"role": "user", "content": "h€y"}]
CHAT_TEXT = "user: h€y\nassistant: "


async def chat_tokens(server: Server, *, stream: bool, **fields: Any) -> tuple[str, list[Any]]:
    """The text of an answer, and the entries of its logprobs."""
    if not stream:
        answer = await server.openai.chat.completions.create(
            model=MODEL, messages=CHAT, logprobs=True, **fields
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        return answer.choices[0].message.content or "", list(logprobs.content or [])
    text = ""
    entries: list[ChatCompletionTokenLogprob] = []
    async for chunk in await server.openai.chat.completions.create(
        model=MODEL, messages=CHAT, logprobs=True, stream=True, **fields
    ):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        entries += (choice.logprobs.content or []) if choice.logprobs else []
    return text, entries


@pytest.mark.parametrize("stream", [False, True])
async def test_the_bytes_of_all_tokens_are_the_answer(server: Server, stream: bool) -> None:
    """Also where a character is split over tokens; the end token is not among them."""
    text, entries = await chat_tokens(server, stream=stream, top_logprobs=2)
    assert text == CHAT_TEXT
    assert bytes(value for entry in entries for value in entry.bytes) == CHAT_TEXT.encode()
    first = entries[0]
    assert (first.token, first.logprob) == ("u", -0.5)
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [("t", -0.25), ("u", -0.5)]
    euro = entries[CHAT_TEXT.encode().index("€".encode())]
    assert (euro.token, euro.bytes) == ("\ufffd", [0xE2])


@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_of_a_stop_string_is_sent(server: Server, stream: bool) -> None:
    text, entries = await chat_tokens(server, stream=stream, stop=["h€"])
    assert text == "user: "
    assert [entry.token for entry in entries] == list("user: ")
    assert entries[0].top_logprobs == []


async def test_a_chat_without_logprobs_has_none(server: Server) -> None:
    answer = await server.openai.chat.completions.create(model=MODEL, messages=CHAT)
    assert answer.choices[0].logprobs is None


async def test_a_completions_logprobs_are_parallel_lists(server: Server) -> None:
    answer = await server.openai.completions.create(model=MODEL, prompt="a€b", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"]
    assert logprobs.token_logprobs == [-0.5] * 5
    assert logprobs.text_offset == [0, 1, 1, 1, 2]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"`": -0.25, "a": -0.5}


async def test_zero_logprobs_give_only_the_tokens_own(server: Server) -> None:
    answer = await server.openai.completions.create(model=MODEL, prompt="ab", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs == [{"a": -0.5}, {"b": -0.5}]


@pytest.mark.parametrize("prompt", ["ab€", list("ab€".encode())])
async def test_an_echoed_prompt_is_scored_with_the_answer(
    server: Server, prompt: str | list[int]
) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt=prompt, logprobs=0, echo=True, max_tokens=2
    )
    choice = answer.choices[0]
    assert choice.text == "ab€ab"
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 2, 2, 3, 4]
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[0] is None


async def test_a_prompt_is_scored_without_an_answer(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt=["ab", "c"], logprobs=1, echo=True, max_tokens=0
    )
    assert [choice.text for choice in answer.choices] == ["ab", "c"]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [None, -0.5]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 0)
    asked = [g for g in server.engine.of(Generate) if isinstance(g, Generate)]
    assert [(g.max_tokens, g.prompt_logprobs) for g in asked] == [(0, 1), (0, 1)]


async def test_a_prompt_that_fills_the_context_is_scored(server: Server) -> None:
    full = [97] * CONTEXT_TOKENS
    scored: dict[str, Any] = {"prompt": full, "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = (await server.http.post("/v1/completions", json=scored)).json()
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == CONTEXT_TOKENS
    cut = scored | {"prompt": [97] * 600, "truncate_prompt_tokens": -1}
    answer = (await server.http.post("/v1/completions", json=cut)).json()
    assert answer["usage"]["prompt_tokens"] == CONTEXT_TOKENS
    native: dict[str, Any] = {"input_ids": full, "prompt_logprobs": 0, "max_tokens": 0}
    answer = (await server.http.post("/generate", json=native)).json()
    assert len(answer["choices"][0]["prompt_logprobs"]) == CONTEXT_TOKENS
    most = CONTEXT_TOKENS - 1
    for path, more, says in (
        ("/v1/completions", scored | {"max_tokens": 1}, f"1 to {most} in a prompt, with 1 token"),
        ("/v1/completions", {"prompt": full}, f"1 to {most} in a prompt, with 1 token"),
        ("/v1/completions", scored | {"prompt": [*full, 97]}, f"1 to {most + 1} in a"),
        ("/generate", native | {"max_tokens": 1}, f"1 to {most} in a prompt, with 1 token"),
        ("/generate", {"input_ids": full}, f"1 to {most} in a prompt, with 1 token"),
    ):
        error = (await server.http.post(path, json=more)).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert says in error["message"]


async def test_an_echo_streams_first(server: Server) -> None:
    stream = await server.openai.completions.create(
        model=MODEL, prompt="ab", echo=True, stream=True, logprobs=0
    )
    chunks = [chunk.choices[0] async for chunk in stream]
    assert [chunk.text for chunk in chunks] == ["aba", "b", ""]
    first = chunks[0].logprobs
    assert first is not None
    assert first.token_logprobs == [None, -0.5, -0.5]
    assert first.text_offset == [0, 1, 2]


async def test_an_echo_is_not_searched_for_stop_strings(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt="abc", echo=True, stop=["ca", "b"]
    )
    assert answer.choices[0].text == "abca"


async def test_a_chats_prompt_logprobs_stand_where_vllm_has_them_too(server: Server) -> None:
    path = "/v1/chat/completions"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    scored = (await server.http.post(path, json={**body, "prompt_logprobs": 1, "n": 2})).json()
    assert len(scored["prompt_logprobs"]) == scored["usage"]["prompt_tokens"]
    assert [choice["prompt_logprobs"] for choice in scored["choices"]] == [
        scored["prompt_logprobs"]
    ] * 2
    plain = (await server.http.post(path, json=body)).json()
    assert plain["prompt_logprobs"] is None
    text = await server.openai.completions.create(model=MODEL, prompt="a")
    assert text.choices[0].prompt_logprobs is None  # type: ignore[attr-defined]


async def test_prompt_logprobs_are_keyed_by_token_id(server: Server) -> None:
    body = {"model": MODEL, "prompt": "ab", "prompt_logprobs": 1, "max_tokens": 1}
    response = await server.http.post("/v1/completions", json=body)
    (choice,) = response.json()["choices"]
    assert choice["logprobs"] is None
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": -0.5, "rank": 2, "decoded_token": "b"},
            "99": {"logprob": -0.25, "rank": 1, "decoded_token": "c"},
        },
    ]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "éb"}),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "ab"}]}),
        ("/generate", {"text": "éb"}),
    ],
)
async def test_a_stream_sends_prompt_logprobs_once(
    server: Server, path: str, asked: dict[str, Any]
) -> None:
    whole = await server.http.post(path, json={**asked, "prompt_logprobs": 1})
    (choice,) = whole.json()["choices"]
    body = {**asked, "prompt_logprobs": 1, "stream": True}
    stream = await server.http.post(path, json=body)
    events = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    told = [one["prompt_logprobs"] for one in choices if "prompt_logprobs" in one]
    assert told == [choice["prompt_logprobs"]]
    assert len(choices) > 1
