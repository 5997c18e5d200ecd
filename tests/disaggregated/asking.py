"""Requests of every kind, as a client sends them, and when two answers are the same.

The sample's trained model answers its tasks rightly only with every page of the prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from e2e.model.tasks import as_chat, make_prompt
from tests.disaggregated.engines import MODEL
from tests.runtime.launch.processes import HANG_SECONDS

Body = dict[str, Any]
RIGHT_SEEDS: Final = range(40)
"""Of copy prompts of 32 to 512 bytes, all of which the model answers rightly."""
_OF_ONE_ANSWER: Final = frozenset({"id", "created", "prompt_tokens_details"})


@dataclass(frozen=True)
class Request:
    """A request, and the text of its answer where there is only one."""

    name: str
    path: str
    body: Body
    answer: str | None = None


def task(kind: str, length: int, seed: int, *, chat: bool = False, **fields: Any) -> Request:
    """A question that has one right answer."""
    prompt, answer = make_prompt(kind, length, seed)
    body = {"max_tokens": length + 8, "temperature": 0, **fields}
    name = f"{kind}-{length}-{seed}"
    if chat:
        return Request(f"chat-{name}", *_chat(prompt, body), answer)
    return Request(name, *_completion(prompt, body), answer)


def text(length: int, seed: int, max_tokens: int = 8, **fields: Any) -> Request:
    """A prompt of any length and no sense; one byte is a token."""
    rng = random.Random(f"text/{length}/{seed}")
    prompt = "".join(rng.choice("abcdefgh ijklmnop,qrstuvwxyz.") for _ in range(length))
    body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}
    return Request(f"text-{length}-{seed}", *_completion(prompt, body))


def of_every_kind() -> list[Request]:
    """Sampling, scores, grammar and choices of every kind; some prompts share their beginning."""
    prompt, _ = make_prompt("copy", 100, 1)
    drawn = {"temperature": 1.0, "seed": 11, "ignore_eos": True, "max_tokens": 24}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2}
    person = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": person}}
    bodies: dict[str, Body] = {
        "drawn": drawn | {"top_p": 0.9, "top_k": 40},
        "penalised": drawn | penalties,
        "choices": drawn | {"n": 3},
        "scored": {"temperature": 0, "logprobs": 3, "max_tokens": 12},
        "echoed": {"temperature": 0, "logprobs": 2, "echo": True, "max_tokens": 6},
        "stopped": {"temperature": 0, "stop": [_middle(prompt)], "max_tokens": 120},
        "one": {"temperature": 0, "max_tokens": 1},
        "waits": drawn | {"min_tokens": 9, "logit_bias": {"256": 5}, "ignore_eos": False},
        "formed": {"temperature": 0, "structured_outputs": {"regex": "[a-f]{9}x"}},
        "schema": drawn | {"response_format": schema, "ignore_eos": False},
    }
    asked = [Request(name, *_completion(prompt, body)) for name, body in bodies.items()]
    several, chat = [prompt, prompt[:64] + "zz\n"], {"logprobs": True, "top_logprobs": 2}
    asked.append(Request("prompts", *_completion(several, {"temperature": 0, "max_tokens": 9})))
    asked.append(Request("chat-scored", *_chat(prompt, {"temperature": 0, "max_tokens": 9} | chat)))
    return asked


def ask(url: str, request: Request, *, stream: bool = False) -> Any:
    """The answer; of a stream, one that has what all of its events have.

    Raises:
        AssertionError: the status is not 200, or the stream ends without [DONE].
    """
    client = httpx.Client(verify=False, timeout=HANG_SECONDS)
    with client, client.stream("POST", url + request.path, json=_streamed(request, stream)) as got:
        content = got.read().decode()
    assert got.status_code == 200, f"{request.name}: {got.status_code} {content}"
    return _joined(request, content) if stream else json.loads(content)


def ask_all(url: str, requests: Sequence[Request], clients: int = 4) -> list[Any]:
    """Their answers, some at a time."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda request: ask(url, request), requests))


def check(request: Request, answer: Any, expected: Any = None) -> None:
    """It is right, and the same as another engine's."""
    if request.answer is not None:
        assert texts(answer) == [request.answer] * len(answer["choices"]), request.name
    if expected is not None:
        _same(answer, expected, request.name)


def texts(answer: Any) -> list[str]:
    """Of its choices."""
    return [
        choice["message"]["content"] if "message" in choice else choice["text"]
        for choice in answer["choices"]
    ]


def _same(ours: Any, theirs: Any, where: str) -> None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        assert ours.keys() - _OF_ONE_ANSWER == theirs.keys() - _OF_ONE_ANSWER, where
        for key in ours.keys() - _OF_ONE_ANSWER:
            _same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            _same(one, other, f"{where}[{number}]")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=2e-4), where
    else:
        assert ours == theirs, where


def _joined(request: Request, content: str) -> Any:
    lines = [line.removeprefix("data: ") for line in content.splitlines() if line]
    assert lines[-1] == "[DONE]", f"{request.name}: {lines[-1]}"
    parts: dict[int, str] = {}
    for event in map(json.loads, lines[:-1]):
        assert "error" not in event, f"{request.name}: {event}"
        for choice in event["choices"]:
            piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
            parts[choice["index"]] = parts.get(choice["index"], "") + (piece or "")
    return {"choices": [{"text": parts[number]} for number in sorted(parts)]}


def _streamed(request: Request, stream: bool) -> Body:
    return {**request.body, "stream": stream}


def _completion(prompt: str | list[str], body: Body) -> tuple[str, Body]:
    return "/v1/completions", {"model": MODEL, "prompt": prompt, **body}


def _chat(prompt: str, body: Body) -> tuple[str, Body]:
    return "/v1/chat/completions", {"model": MODEL, "messages": as_chat(prompt), **body}


def _middle(prompt: str) -> str:
    """A text that the answer comes to."""
    return prompt[50:53]
