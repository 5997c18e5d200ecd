"""Sluice's own routes that ask the engine: generate, abort, a token for health."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from sluice_contract.config.router import MAX_PRIORITY
from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.health import TokenCheck, draw_token
from sluice_runtime.wire.messages import Abort, Generate

from tests.runtime.server.conftest import MODEL, Server, until
from tests.runtime.server.fake_engine import MOST_QUEUED, MOST_RUNNING

pytestmark = pytest.mark.asyncio(loop_scope="module")

PER_REQUEST = (
    "sluice_prompt_", "sluice_time_to_first_token", "sluice_inter_token", "sluice_request",
    "sluice_output_length", "sluice_queue_time", "sluice_generated_tokens",
)  # fmt: skip
"""How the names of metrics begin that count requests and their tokens."""


async def test_texts_and_tokens_are_turned_into_each_other(server: Server) -> None:
    asked = {"model": MODEL, "prompt": "h€", "return_token_strs": True}
    tokens = (await server.http.post("/tokenize", json=asked)).json()
    assert tokens == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [104, 226, 130, 172],
        "token_strs": ["<0x68>", "<0xE2>", "<0x82>", "<0xAC>"],
    }
    body = {"tokens": [*tokens["tokens"], 257]}
    assert (await server.http.post("/detokenize", json=body)).json() == {"prompt": "h€<pad>"}
    assert server.engine.heard == []


async def test_a_conversation_is_tokenised_as_a_chat_is(server: Server) -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({}, "user: a\nassistant: "),
        ({"add_generation_prompt": False}, "user: a\n"),
    ]
    for option, text in options:
        body = {"messages": [{"role": "user", "content": "a"}], **option}
        tokens = (await server.http.post("/tokenize", json=body)).json()
        assert bytes(tokens["tokens"]).decode() == text
        assert tokens["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "prompt"),
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": [{"role": "judge", "content": "a"}]}, 400, "messages[0].role"),
        ("/tokenize", {"model": "other", "prompt": "a"}, 404, "model"),
        ("/tokenize", {"prompt": "a" * 9000}, 400, "prompt"),
        ("/detokenize", {"tokens": [259]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
    ],
)
async def test_what_has_no_tokens_is_refused(
    server: Server, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    response = await server.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("prompt", [{"text": "h€"}, {"input_ids": list("h€".encode())}])
async def test_generate_answers_with_text_and_token_ids(
    server: Server, prompt: dict[str, Any]
) -> None:
    body = {**prompt, "logprobs": 0, "stop": "\n"}
    answer = (await server.http.post("/generate", json=body)).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("h€", "stop")
    assert choice["token_ids"] == list("h€".encode())
    assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [
        [value] for value in "h€".encode()
    ]
    assert answer["id"].startswith("gen-")
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, 5)


async def test_a_stream_of_generate_has_every_token_once(server: Server) -> None:
    body = {"text": "a€b", "stream": True}
    response = await server.http.post("/generate", json=body)
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == "a€b"
    tokens = [token for choice in choices for token in choice["token_ids"]]
    assert tokens == list("a€b".encode())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"input_ids": [999]}, "input_ids"),
        ({"text": "a", "n": 2}, "n"),
        ({"text": "a", "max_tokens": 0}, "max_tokens"),
    ],
)
async def test_generate_refuses_by_field(server: Server, body: dict[str, Any], param: str) -> None:
    response = await server.http.post("/generate", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_aborted_by_its_id(server: Server, stream: bool) -> None:
    server.engine.paused.set()
    body = {"model": MODEL, "prompt": "abc", "n": 2, "stream": stream}
    asked = asyncio.ensure_future(
        server.http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    )
    other = asyncio.ensure_future(server.http.post("/generate", json={"text": "x"}))
    await until(lambda: len(server.engine.running) == 3)
    aborted = await server.http.post("/abort_request", json={"request_id": "mine"})
    assert aborted.json() == {"aborted": 2}
    response = await asked
    assert (response.status_code, response.json()["error"]["code"]) == (499, "aborted")
    await until(lambda: len(server.engine.running) == 1)
    assert len(server.engine.of(Abort)) == 2
    server.engine.paused.clear()
    assert (await other).status_code == 200
    again = await server.http.post("/abort_request", json={"request_id": "mine"})
    assert again.json() == {"aborted": 0}


async def test_requests_with_the_same_id_are_separate_and_aborted_together(
    server: Server,
) -> None:
    server.engine.paused.set()
    asked = [
        asyncio.ensure_future(
            server.http.post("/generate", json={"text": text}, headers={"x-request-id": "mine"})
        )
        for text in ("a", "bc", "def", "x")
    ]
    await until(lambda: len(server.engine.running) == 4)
    (wire_id, *_) = server.engine.running
    asked.append(
        asyncio.ensure_future(
            server.http.post("/generate", json={"text": "y"}, headers={"x-request-id": wire_id})
        )
    )
    await until(lambda: len(server.engine.running) == 5)
    server.engine.paused.clear()
    answers = [await one for one in asked]
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert texts == ["a", "bc", "def", "x", "y"]
    assert [answer.headers["x-request-id"] for answer in answers] == ["mine"] * 4 + [wire_id]

    server.engine.paused.set()
    await until(lambda: not server.engine.running)
    same = [
        asyncio.ensure_future(
            server.http.post("/generate", json={"text": "x"}, headers={"x-request-id": "mine"})
        )
        for _ in range(2)
    ]
    await until(lambda: len(server.engine.running) == 2)
    aborted = await server.http.post("/abort_request", json={"request_id": "mine"})
    assert aborted.json() == {"aborted": 2}
    assert [(await one).status_code for one in same] == [499, 499]


async def test_a_stream_is_aborted_by_the_id_of_its_response(server: Server) -> None:
    server.engine.step_seconds = 0.05
    body = {"text": "x" * 300, "stream": True}
    async with server.http.stream("POST", "/generate", json=body) as response:
        lines = response.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        await server.http.post("/abort_request", json={"request_id": first["id"]})
        rest = [line async for line in lines if line]
    server.engine.step_seconds = 0.0
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "aborted"
    assert "[DONE]" not in rest[-1]


@pytest.mark.parametrize("seconds", ["0", "86401", "nan", "soon"])
async def test_health_wants_a_time_that_means_something(server: Server, seconds: str) -> None:
    assert (await server.http.get("/health?loading_seconds=86400")).status_code == 200
    response = await server.http.get("/health", params={"loading_seconds": seconds})
    assert response.status_code == 400
    assert f'loading_seconds: "{seconds}" is not allowed' in response.json()["error"]["message"]


async def test_health_generate_draws_a_token(server: Server) -> None:
    response = await server.http.get("/health_generate")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    (asked,) = server.engine.of(Generate)
    assert isinstance(asked, Generate)
    assert asked.max_tokens == 1


async def test_whoever_asks_while_a_token_is_awaited_shares_that_check(server: Server) -> None:
    server.engine.paused.set()
    check = TokenCheck(server.service.client, server.service.clocks.monotonic)
    asked = [asyncio.ensure_future(check()) for _ in range(20)]
    await until(lambda: bool(server.engine.of(Generate)))
    asked[0].cancel()
    server.engine.paused.clear()
    await asyncio.gather(*asked[1:])
    assert len(server.engine.of(Generate)) == 1


async def test_health_generate_is_less_urgent_than_any_request_and_in_no_metric(
    server: Server,
) -> None:
    before = await _request_metrics(server)
    await server.http.get("/health_generate")
    (asked,) = server.engine.of(Generate)
    assert isinstance(asked, Generate)
    assert asked.priority == -MAX_PRIORITY
    assert await _request_metrics(server) == before


async def test_the_tokens_of_others_show_that_an_engine_with_a_full_queue_is_healthy(
    server: Server,
) -> None:
    server.engine.step_seconds = 0.05
    body = {
        "model": MODEL,
        "prompt": "x" * 100,
        "max_tokens": 300,
        "stream": True,
        "ignore_eos": True,
    }
    body["n"] = MOST_RUNNING + MOST_QUEUED
    async with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.aiter_lines()  # the stream ends with what reads it
        await anext(lines)
        await until(lambda: len(server.engine.running) == body["n"])
        server.engine.heard.clear()
        await draw_token(server.service.client, 0.0)
        assert server.engine.of(Generate) == []
    server.engine.step_seconds = 0.0
    await until(lambda: not server.service.client._unfinished)


async def _request_metrics(server: Server) -> list[str]:
    lines = (await server.http.get("/metrics")).text.splitlines()
    return [line for line in lines if line.startswith(PER_REQUEST)]


async def test_an_engine_that_draws_no_token_in_time_is_not_healthy(server: Server) -> None:
    server.engine.paused.set()
    with pytest.raises(UnavailableError, match=r"no token within 0\.05 s"):
        await draw_token(server.service.client, 0.0, seconds=0.05)
    await until(lambda: not server.engine.running)


async def test_abort_request_wants_an_id(server: Server) -> None:
    response: httpx.Response = await server.http.post("/abort_request", json={})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "request_id"
