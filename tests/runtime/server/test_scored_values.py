"""Many scored tokens: more than are told are refused; those that are hold up nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sluice_runtime.server import response_writers, sampling_plan
from sluice_runtime.server.streaming import EventStream, WholeAnswer
from sluice_runtime.wire.messages import Generate
from starlette.types import Message

from tests.runtime.server.conftest import MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/completions"
NINE = {"model": MODEL, "prompt": "a" * 9, "max_tokens": 1}
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        (COMPLETIONS, NINE | {"n": 2, "prompt_logprobs": 4}, None, ""),
        (COMPLETIONS, NINE | {"n": 2, "logprobs": 4, "echo": True}, None, ""),
        (COMPLETIONS, NINE | {"n": 10, "logprobs": 5}, None, ""),
        (
            COMPLETIONS,
            NINE | {"n": 2, "prompt_logprobs": 5},
            "prompt_logprobs",
            "5 is not allowed for 18 prompt tokens in all choices, which makes 108 values; "
            "allowed: at most 100, of each token its own and those beside it",
        ),
        (COMPLETIONS, NINE | {"n": 12, "prompt_logprobs": 0}, "prompt_logprobs", "makes 108 va"),
        (
            COMPLETIONS,
            NINE | {"prompt": ["a" * 9] * 11, "prompt_logprobs": 1},
            "prompt_logprobs",
            "99",
        ),
        (COMPLETIONS, NINE | {"n": 2, "logprobs": 5, "echo": True}, "logprobs", "makes 108 values"),
        (
            COMPLETIONS,
            NINE | {"n": 2, "logprobs": 2, "echo": True, "prompt_logprobs": 2},
            "prompt_logprobs",
            "makes 108 values",
        ),
        ("/generate", {"input_ids": [1] * 51, "prompt_logprobs": 1}, "prompt_logprobs", "102"),
        (
            "/v1/chat/completions",
            {"model": MODEL, "messages": USER, "n": 12, "prompt_logprobs": 0},
            "prompt_logprobs",
            "at most 100",
        ),
    ],
)
async def test_too_many_prompt_logprobs_are_a_400_before_anything_runs(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    fields: dict[str, Any],
    param: str | None,
    says: str,
) -> None:
    monkeypatch.setattr(sampling_plan, "MAX_SCORED_VALUES", 100)
    response = await server.http.post(path, json=fields)
    if param is None:
        assert response.status_code == 200, response.text
        return
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: ")
    assert says in error["message"]
    assert not server.engine.of(Generate)


CHAT = "/v1/chat/completions"
ANSWERED = {"model": MODEL, "messages": USER, "logprobs": True}


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        (CHAT, ANSWERED | {"n": 4, "top_logprobs": 4, "max_tokens": 5}, ""),
        (CHAT, ANSWERED | {"n": 4, "logprobs": False, "max_tokens": 26}, ""),
        (
            CHAT,
            ANSWERED | {"n": 4, "top_logprobs": 4, "max_tokens": 6},
            "max_tokens: 6 is not allowed for 4 answers (n for each prompt) with top_logprobs 4, "
            "which makes 120 values; allowed: at most 5, for 100 values in all answers, of each "
            "token its own and those beside it",
        ),
        (
            CHAT,
            ANSWERED | {"n": 4, "max_completion_tokens": 26},
            "max_completion_tokens: 26 is not allowed for 4 answers (n for each prompt) with "
            "top_logprobs 0,",
        ),
        (
            COMPLETIONS,
            NINE | {"n": 2, "prompt": ["a", "b"], "logprobs": 5, "max_tokens": 5},
            "max_tokens: 5 is not allowed for 4 answers (n for each prompt) with logprobs 5, ",
        ),
    ],
)
async def test_too_many_logprobs_of_answers_are_a_400_before_anything_runs(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(sampling_plan, "MAX_ANSWER_SCORES", 100)
    response = await server.http.post(path, json=fields)
    if not says:
        assert response.status_code == 200, response.text
        return
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, says.partition(":")[0])
    assert error["message"].startswith(says)
    assert not server.engine.of(Generate)


async def test_an_answer_without_a_limit_is_as_long_as_its_scores_may_be(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_plan, "MAX_ANSWER_SCORES", 100)
    response = await server.http.post(CHAT, json=ANSWERED | {"n": 2, "top_logprobs": 4})
    assert response.status_code == 200, response.text
    assert [generate.max_tokens for generate in server.engine.of(Generate)] == [10, 10]


async def test_a_whole_context_of_one_answer_may_be_scored() -> None:
    assert sampling_plan.MAX_ANSWER_SCORES >= 131_072 * (20 + 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("length", "loop"), [(2, True), (400, False)])
async def test_many_scored_tokens_are_written_beside_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch, stream: bool, length: int, loop: bool
) -> None:
    """Else every other stream, and /health, would wait for all of them."""
    threads = []
    write = response_writers.prompt_logprobs

    def written(scores: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return write(scores)

    monkeypatch.setattr(response_writers, "prompt_logprobs", written)
    body = {"model": MODEL, "prompt": "a" * length, "max_tokens": 1, "prompt_logprobs": 20, "n": 2}
    response = await server.http.post(COMPLETIONS, json=body | {"stream": stream})
    assert response.text.count('"rank":1,') == 2 * (length - 1)
    assert threads == [loop] * 2


async def sent_by(response: Any) -> list[Message]:
    """What a response sends to a client that reads on."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    await response({"type": "http"}, receive, send)
    return sent


BODY = bytes(range(256)) * 4096


async def test_a_long_answer_is_sent_in_parts_that_make_the_whole() -> None:
    start, *parts = await sent_by(WholeAnswer(BODY))
    assert (b"content-length", str(len(BODY)).encode()) in start["headers"]
    assert (b"content-type", b"application/json") in start["headers"]
    assert b"".join(part["body"] for part in parts) == BODY
    assert max(len(part["body"]) for part in parts) <= len(BODY) // 4
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]


async def test_a_long_event_is_sent_in_parts_that_make_the_whole() -> None:
    async def one() -> AsyncGenerator[dict[str, Any], None]:
        yield {"text": "x" * len(BODY)}

    _, *parts = await sent_by(EventStream(one()))
    text = b"".join(part["body"] for part in parts)
    assert text == b'data: {"text":"' + b"x" * len(BODY) + b'"}\n\ndata: [DONE]\n\n'
    assert max(len(part["body"]) for part in parts) <= len(BODY) // 4
