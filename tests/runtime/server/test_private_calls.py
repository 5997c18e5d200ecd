"""Private calls over HTTP: wherever a stream breaks, another engine's goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, PrefillRef, signed_header
from sluice_contract.wire.private_calls import (
    MORE_LINE,
    PRIVATE_HEADER,
    AnswerStart,
    CallHead,
    ChoiceSoFar,
    Resume,
    Score,
    head_line,
    read_comment,
    signed_call,
)
from sluice_runtime.model.chat_template import load_chat_template
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MAX_BODY_BYTES, MODEL, Server, running_server
from tests.runtime.server.fake_engine import EOS

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = b"k" * 32
COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, key=KEY) as server:
            yield server


@dataclass
class SoFar:
    """What a router knows of an answer."""

    start: AnswerStart | None = None
    ids: dict[int, list[int]] = field(default_factory=dict)
    scores: dict[int, list[Score]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    last: bool = False
    passed: list[str] = field(default_factory=list)
    """Data of the events that were passed on."""

    def take(self, event: str) -> None:
        for line in event.split("\n"):
            if line.startswith("data: "):
                self.passed.append(line.removeprefix("data: "))
            if not line.startswith(":"):
                continue
            comment = read_comment(line.encode())
            self.start = self.start or comment.start
            for choice, ids in comment.c:
                self.ids.setdefault(choice, []).extend(ids)
            for choice, scores in comment.scores:
                self.scores.setdefault(choice, []).extend(scores)
            self.cached.update(comment.cached)
            self.finished.update(comment.f)
            self.last = self.last or comment.last

    @property
    def resume(self) -> Resume | None:
        if self.start is None:
            return None
        choices = [
            ChoiceSoFar(
                self.ids.get(place, []),
                self.scores.get(place, []),
                self.cached.get(place, 0),
                place in self.finished,
            )
            for place in range(len(self.start.max_tokens))
        ]
        return Resume(self.start, choices)


def signature(
    path: str, body: bytes, key: bytes = KEY, request_id: str = "r1", age_seconds: float = 0.0
) -> str:
    """As the router signs a private call."""
    bound = Bound(path, hashlib.sha256(body).hexdigest())
    return signed_call(key, request_id, bound, time.time() - age_seconds)


async def call(
    server: Server, path: str, body: dict[str, Any], resume: Resume | None = None, seed: int = 5
) -> httpx.Response:
    sent = head_line(CallHead(seed, resume)) + json.dumps(body).encode()
    headers = {PRIVATE_HEADER: signature(path, sent), "X-Request-Id": "r1"}
    return await server.http.post(path, content=sent, headers=headers)


async def events(
    server: Server, path: str, body: dict[str, Any], resume: Resume | None = None
) -> list[str]:
    response = await call(server, path, body, resume)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *found, rest = response.text.split("\n\n")
    assert rest == ""
    return found


def after(all_events: list[str], count: int) -> SoFar:
    sofar = SoFar()
    for event in all_events[:count]:
        sofar.take(event)
    return sofar


def per_choice(passed: list[str]) -> dict[Any, list[Any]]:
    """Events by choice, in their order; usage and the end by themselves."""
    found: dict[Any, list[Any]] = {}
    for one in passed:
        value = one if one == "[DONE]" else json.loads(one)
        choices = value["choices"] if isinstance(value, dict) else []
        found.setdefault(choices[0]["index"] if choices else None, []).append(value)
    return found


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
STREAMS: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": "ab€cd", **USAGE}),
    (COMPLETIONS, {"prompt": "ab€c xyxz more", "stop": ["xz", "yyy"], "logprobs": 2, **USAGE}),
    (COMPLETIONS, {"prompt": "zabab", "stop": ["abc"], "logprobs": 1, "min_tokens": 3, **USAGE}),
    (COMPLETIONS, {"prompt": ["ab", "c€"], "n": 2, "stream": True, "max_tokens": 3}),
    (COMPLETIONS, {"prompt": "abc", "echo": True, "logprobs": 1, **USAGE}),
    (COMPLETIONS, {"prompt": "abc", "return_token_ids": True, "stop": ["c"], **USAGE}),
    (COMPLETIONS, {"prompt": "€€", "prompt_logprobs": 1, **USAGE}),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0, "prompt_logprobs": 1, **USAGE}),
    (CHAT, {"messages": [{"role": "user", "content": "a€"}], "max_tokens": 9, **USAGE}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "n": 2, **USAGE}),
    (GENERATE, {"text": "ab€", "stream": True}),
]


EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
"""How many of the places where it may break off are tried: one in so many."""


@EVERY
@pytest.mark.parametrize(("path", "asked"), STREAMS, ids=range(len(STREAMS)))
async def test_a_stream_goes_on_from_every_event(
    server: Server, path: str, asked: dict[str, Any], every: int
) -> None:
    body = {"model": MODEL} | asked if path != GENERATE else asked
    whole = await events(server, path, body)
    expected = per_choice(after(whole, len(whole) - 1).passed)
    assert whole[-1] == "data: [DONE]"
    for cut in range(1, len(whole), every):
        before = after(whole, cut)
        if before.last or whole[cut - 1].startswith(MORE_LINE.decode()):
            continue
        rest = await events(server, path, body, before.resume)
        more = after(rest, len(rest) - 1)
        assert per_choice(before.passed + more.passed) == expected, cut
        assert rest[-1] == "data: [DONE]"
        assert more.start is not None
        assert before.start is not None
        assert more.start.id == before.start.id


@EVERY
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (COMPLETIONS, {"prompt": ["ab€" * 9, "x" * 40], "n": 2, "stop": ["bb"], "logprobs": 1}),
        (COMPLETIONS, {"prompt": "abc" * 9, "prompt_logprobs": 1, "logprobs": 1, "echo": True}),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 0, "echo": True}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 20}], "logprobs": True}),
        (GENERATE, {"text": "ab€" * 20}),
    ],
)
async def test_a_whole_answer_has_all_of_it_wherever_it_broke(
    server: Server, path: str, asked: dict[str, Any], every: int
) -> None:
    body = {"model": MODEL} | asked if path != GENERATE else asked
    sent = await events(server, path, body)
    (answer,) = after(sent, len(sent) - 1).passed
    public = (await server.http.post(path, json=body)).json()
    expected = json.loads(answer)
    assert public["choices"] == expected["choices"]
    for cut in range(1, len(sent) - 1, every):
        before = after(sent, cut)
        rest = await events(server, path, body, before.resume)
        again = json.loads(after(rest, len(rest) - 1).passed[0])
        if len(before.ids) < len(expected["choices"]):  # begun anew, and found in the cache
            again["usage"].pop("prompt_tokens_details")
            assert again["usage"].items() <= expected["usage"].items()
            again["usage"] = expected["usage"]
        assert again == expected


async def test_the_engine_hears_what_was_generated_and_runs_only_what_is_not_finished(
    server: Server,
) -> None:
    body = {"model": MODEL, "prompt": ["ab", "abcdef"], "stream": True}
    sent = await events(server, COMPLETIONS, body)
    first_end = next(n for n, event in enumerate(sent, 1) if '"finish_reason":"stop"' in event)
    before = after(sent, first_end)
    server.engine.heard.clear()
    await events(server, COMPLETIONS, body, before.resume)
    (generate,) = server.engine.of(Generate)
    assert isinstance(generate, Generate)
    assert generate.generated_ids == before.ids.get(1, [])
    assert generate.prompt_ids == list(b"abcdef")


async def test_ids_that_end_the_answer_need_no_engine(server: Server) -> None:
    body = {"model": MODEL, "prompt": "abcd", "stop": ["cd"], **USAGE}
    whole = await events(server, COMPLETIONS, body)
    start = after(whole, 1).start
    assert start is not None
    server.engine.heard.clear()
    for ids, text in ((list(b"abcd"), ""), ([*b"ab", EOS], "")):
        rest = await events(server, COMPLETIONS, body, Resume(start, [ChoiceSoFar(ids)]))
        last, usage = (json.loads(one) for one in after(rest, len(rest) - 1).passed)
        assert (last["choices"][0]["text"], last["choices"][0]["finish_reason"]) == (text, "stop")
        assert usage["usage"]["completion_tokens"] == len(ids)
    assert server.engine.of(Generate) == []


async def test_the_routers_seed_is_for_requests_without_one(server: Server) -> None:
    for more, seed in (({}, 5), ({"seed": 9}, 9)):
        server.engine.heard.clear()
        await call(server, COMPLETIONS, {"model": MODEL, "prompt": "a", **more})
        (generate,) = server.engine.of(Generate)
        assert isinstance(generate, Generate)
        assert generate.sampling.seed == seed


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"start": {"answerIdentity": "0"}}, "resume.start.answerIdentity: 0 is not allowed"),
        ({"start": {"answerIdentity": ""}}, "resume.start.answerIdentity"),
        ({"start": {"promptHash": "0"}}, "resume.start.promptHash"),
        ({"start": {"maxTokens": [3, 3]}}, "resume.start.maxTokens"),
        ({"choices": []}, "resume.choices"),
        ({"choices": [{"ids": [97, 999]}]}, "resume.choices[0].ids: token id 999"),
        ({"choices": [{"ids": [97], "scores": [[-1.0, 1]]}]}, "resume.choices[0].scores"),
        ({"choices": [{"ids": [EOS, 97]}]}, "resume.choices[0].ids: 2 that end behind"),
        ({"choices": [{"ids": [*b"abcz"]}]}, "resume.choices[0].ids: 4 that end behind"),
        ({"choices": [{"ids": [97, EOS, 97]}]}, "resume.choices[0].ids: 3 that end behind"),
        ({"choices": [{"ids": [97], "finished": True}]}, "1 that end before"),
    ],
)
async def test_what_would_be_a_wrong_continuation_is_refused_by_name(
    server: Server, changed: dict[str, Any], names: str
) -> None:
    body = {"model": MODEL, "prompt": "abcd", "stop": ["bc"], "stream": True}
    sent = await events(server, COMPLETIONS, body)
    resume = after(sent, 1).resume
    value = msgspec.to_builtins(resume)
    value["start"] |= changed.get("start", {})
    value["choices"] = changed.get("choices", value["choices"])
    server.engine.heard.clear()
    response = await call(server, COMPLETIONS, body, msgspec.convert(value, Resume))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (409, "resume_mismatch")
    assert names in error["message"]
    assert server.engine.of(Generate) == []


async def test_another_prompt_is_another_hash(server: Server) -> None:
    hashes = set()
    for prompt in ("ab", "abc", ["ab", "c"], ["a", "bc"], ["abc", ""][:1]):
        sent = await events(server, COMPLETIONS, {"model": MODEL, "prompt": prompt})
        start = after(sent, 1).start
        assert start is not None
        hashes.add(start.prompt_hash)
    assert len(hashes) == 4


async def test_an_answer_that_knows_the_date_goes_on_past_midnight(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert server.service.text is not None
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d') }} abcd")
    template = load_chat_template(ModelFiles("dated", tmp_path, {}, {}))
    monkeypatch.setattr(server.service, "text", replace(server.service.text, template=template))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "stream": True}
    days: list[str] = []
    sent: list[str] = []
    for day in range(3):
        now = time.time() + day * 86_400
        clocks = replace(server.service.clocks, unix=partial(float, now))
        monkeypatch.setattr(server.service, "clocks", clocks)
        server.engine.heard.clear()
        sent = sent or await events(server, CHAT, body)
        rest = await events(server, CHAT, body, after(sent, 3).resume if day else None)
        (*_, asked) = server.engine.of(Generate)
        assert isinstance(asked, Generate)
        days.append(bytes(asked.prompt_ids).decode())
        assert after(rest, len(rest)).passed[-1] == "[DONE]"
    assert len(set(days)) == 1


async def test_an_early_failure_has_its_status(server: Server) -> None:
    for stream in (True, False):
        response = await call(server, COMPLETIONS, {"model": MODEL, "stream": stream})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    server.engine.refuse_with, server.engine.refusal = "full", "overloaded"
    for stream in (True, False):
        body = {"model": MODEL, "prompt": "a", "stream": stream}
        assert (await call(server, COMPLETIONS, body)).status_code == 429


async def test_only_the_router_can_make_private_calls(server: Server) -> None:
    body = head_line(CallHead(1)) + json.dumps({"model": MODEL, "prompt": "a"}).encode()
    for value, says in (
        (signature(COMPLETIONS, body, key=b"x" * 32), "not signed by this service's router"),
        (signature(COMPLETIONS, body, request_id="r2"), "another request"),
        (signature(COMPLETIONS, body + b" "), "another body"),
        (signature("/generate", body), "another path"),
        (signature(COMPLETIONS, body, age_seconds=61), "more than 60 s ago"),
        ("", "not signed"),
    ):
        headers = {PRIVATE_HEADER: value, "X-Request-Id": "r1"}
        response = await server.http.post(COMPLETIONS, content=body, headers=headers)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (403, "invalid_signature")
        assert says in error["message"]
    assert server.engine.of(Generate) == []


async def test_a_decode_engine_goes_on_with_a_pair(server: Server) -> None:
    body = {"model": MODEL, "prompt": "abcd", "stream": True}
    sent = await events(server, COMPLETIONS, body)
    head = head_line(CallHead(5, after(sent, 2).resume)) + json.dumps(body).encode()
    prefill = PrefillRef(host="10.0.0.7", port=8998, epoch="e7")
    bound = Bound(COMPLETIONS, hashlib.sha256(head).hexdigest())
    headers = {
        "X-Request-Id": "r1",
        PRIVATE_HEADER: signature(COMPLETIONS, head),
        PREFILL_HEADER: signed_header(KEY, prefill, "r1", time.time(), bound),
    }
    with private_endpoint() as endpoint:
        async with running_server(endpoint, Role.DECODE, KEY) as decode:
            response = await decode.http.post(COMPLETIONS, content=head, headers=headers)
            (generate,) = decode.engine.of(Generate)
    assert response.text.endswith("data: [DONE]\n\n")
    assert isinstance(generate, Generate)
    assert (generate.generated_ids, generate.prefill is not None) == (list(b"ab"), True)


async def test_an_engine_without_a_key_takes_none() -> None:
    with private_endpoint() as endpoint:
        async with running_server(endpoint) as server:
            response = await call(server, COMPLETIONS, {"model": MODEL, "prompt": "a"})
    assert response.status_code == 403
    assert "handoverKeyFile" in response.json()["error"]["message"]


async def test_the_clients_part_has_the_bounds_that_it_has_without_the_router(
    server: Server,
) -> None:
    body = {"model": MODEL, "prompt": "a", "user": "u" * MAX_BODY_BYTES}
    assert (await call(server, COMPLETIONS, body)).status_code == 413
    start = AnswerStart("cmpl-x", 1, "", [1])
    long = Resume(start, [ChoiceSoFar(list(range(1000, 30_000)))])
    response = await call(server, COMPLETIONS, {"model": MODEL, "prompt": "a"}, long)
    assert response.status_code == 409, "the head may be longer than a body"


@pytest.mark.parametrize("head", [b"", b"[]", b'{"seed":"x"}', b"{}"])
async def test_a_signed_body_without_a_head_is_refused(server: Server, head: bytes) -> None:
    sent = head + b'\n{"model":"echo","prompt":"a"}'
    headers = {PRIVATE_HEADER: signature(COMPLETIONS, sent), "X-Request-Id": "r1"}
    response = await server.http.post(COMPLETIONS, content=sent, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("the first line: ")


async def test_the_limit_is_that_of_the_engine_that_began(server: Server) -> None:
    body = {"model": MODEL, "prompt": "abcdef", "stream": True}
    start = after(await events(server, COMPLETIONS, body), 1).start
    assert start is not None
    shorter = msgspec.structs.replace(start, max_tokens=[4])
    rest = await events(server, COMPLETIONS, body, Resume(shorter, [ChoiceSoFar(list(b"ab"))]))
    choices = [json.loads(one)["choices"][0] for one in after(rest, len(rest) - 1).passed]
    assert [one["text"] for one in choices] == ["c", "d"]
    assert choices[-1]["finish_reason"] == "length"
