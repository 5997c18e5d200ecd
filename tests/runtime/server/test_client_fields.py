"""Fields that real clients send: what has a meaning is done, what has none here is ignored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.http_heads import CLIENT_REQUEST_ID_HEADER, IGNORED_FIELDS_HEADER
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.fake_engine import EOS

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
USER = [{"role": "user", "content": "hi"}]
PAD = 257
"""A special token; the fake engine answers with its prompt."""


async def ask(server: Server, path: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """The answer, and the header of ignored fields."""
    needed: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": "ab"},
        CHAT: {"messages": USER},
        GENERATE: {"text": "ab"},
    }
    body = {"model": MODEL, **needed[path], **fields}
    response = await server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json(), response.headers.get(IGNORED_FIELDS_HEADER, "")


async def events(server: Server, path: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "prompt": "abc", "stream": True, **fields}
    text = (await server.http.post(path, json=body)).text
    return [json.loads(line[6:]) for line in text.split("\n\n") if line[:7] == "data: {"]


HARMLESS: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prediction": {"type": "content", "content": "a"},
    "prompt_cache_key": "k",
    "reasoning_effort": "low",
    "safety_identifier": "s",
    "service_tier": "flex",
    "spaces_between_special_tokens": False,
    "store": True,
    "user": "someone",
    "verbosity": "high",
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
async def test_fields_that_change_no_answer_are_accepted(server: Server, path: str) -> None:
    for field, value in HARMLESS.items():
        assert (await ask(server, path, **{field: value}))[1] == "", field


async def test_an_unknown_field_is_ignored_named_in_a_header_and_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    message = {**USER[0], "cache_control": {}}
    fields = {
        "temprature": 1,
        "a\r\nb": 1,
        "messages": [message, message],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    names = "temprature, a%0D%0Ab, messages[].cache_control, chat_template_kwargs.enable_thinking"
    for _ in range(2):
        _, ignored = await ask(server, CHAT, **fields)
        assert ignored == names
    assert caplog.text.count("ignored in a request: temprature") == 1
    _, ignored = await ask(server, COMPLETIONS, **{f"f{number}": 1 for number in range(1000)})
    assert ignored.startswith("f0, f1, ")
    assert len(ignored.split(", ")) == 32


async def test_the_header_of_ignored_fields_is_short_whatever_they_are(server: Server) -> None:
    """The router takes an engine's header of up to 8 KiB."""
    fields = {f"{number}" + "😀" * 60: 1 for number in range(40)}
    _, ignored = await ask(server, COMPLETIONS, **fields)
    assert len(ignored.split(", ")) == 32
    assert len(ignored) < 4096


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"messages": [{**USER[0], "nam": "a"}]}, "messages[0].nam", "did you mean name?"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", '"x" is not read by'),
    ],
)
async def test_strict_requests_refuse_it_with_what_may_be_meant(
    server: Server, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], param: str, says: str
) -> None:
    strict = replace(server.service.identity, strict_requests=True)
    monkeypatch.setattr(server.service, "identity", strict)
    body = {"model": MODEL, "messages": USER, **fields}
    response = await server.http.post(CHAT, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert server.engine.heard == []


async def test_continuous_usage_is_in_every_event(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = await events(server, COMPLETIONS, stream_options=options)
    usages = [(one["usage"]["prompt_tokens"], one["usage"]["completion_tokens"]) for one in seen]
    assert usages == [(3, 1), (3, 2), (3, 3), (3, 4), (3, 4)]
    assert seen[-1]["choices"] == []


async def test_special_tokens_are_text_if_asked_but_for_the_one_that_ends(server: Server) -> None:
    prompt = [97, PAD, 98]
    shown, _ = await ask(server, COMPLETIONS, prompt=prompt, skip_special_tokens=False)
    hidden, _ = await ask(server, COMPLETIONS, prompt=prompt)
    assert [one["choices"][0]["text"] for one in (shown, hidden)] == ["a<pad>b", "ab"]


@pytest.mark.parametrize(("kept", "prompt"), [(2, "bc"), (9, "abc"), (-1, "abc")])
async def test_a_prompt_is_truncated_to_its_end(server: Server, kept: int, prompt: str) -> None:
    for given in ("abc", [97, 98, 99]):
        answer, _ = await ask(
            server, COMPLETIONS, prompt=given, truncate_prompt_tokens=kept, echo=True, max_tokens=1
        )
        assert answer["choices"][0]["text"] == prompt + prompt[0]
        assert answer["usage"]["prompt_tokens"] == len(prompt)


async def test_a_prompt_beyond_the_context_fits_when_truncated(server: Server) -> None:
    for kept in (-1, 500):
        await ask(server, COMPLETIONS, prompt="a" * 9000, truncate_prompt_tokens=kept, max_tokens=9)
    lengths = [len(one.prompt_ids) for one in server.engine.of(Generate)]
    assert lengths == [512 - 9, 500]


async def test_token_ids_are_returned_where_vllm_has_them(server: Server) -> None:
    whole, _ = await ask(server, COMPLETIONS, return_token_ids=True)
    choice = whole["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [97, 98, EOS])
    assert whole["usage"]["completion_tokens"] == 3
    chat, _ = await ask(server, CHAT, return_token_ids=True)
    assert bytes(chat["prompt_token_ids"]) == b"user: hi\nassistant: "
    assert chat["choices"][0]["token_ids"] == [*chat["prompt_token_ids"], EOS]
    assert "prompt_token_ids" not in chat["choices"][0]
    seen = await events(server, COMPLETIONS, return_token_ids=True, prompt="€")
    assert [one["choices"][0]["token_ids"] for one in seen] == [[226], [130], [172], [EOS]]
    assert [one["choices"][0].get("prompt_token_ids") for one in seen][1:] == [None] * 3


async def test_a_chats_prompt_may_end_with_the_last_message(server: Server) -> None:
    chat, _ = await ask(server, CHAT, return_token_ids=True, add_generation_prompt=False)
    assert bytes(chat["prompt_token_ids"]) == b"user: hi\n"


BEGUN = [*USER, {"role": "assistant", "content": "So be "}]


async def test_an_answer_may_go_on_with_the_last_message(server: Server) -> None:
    chat, _ = await ask(
        server, CHAT, messages=BEGUN, continue_final_message=True, return_token_ids=True
    )
    assert bytes(chat["prompt_token_ids"]) == b"user: hi\nassistant: So be "
    body = {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}
    tokens = (await server.http.post("/tokenize", json=body)).json()["tokens"]
    assert tokens == chat["prompt_token_ids"]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": BEGUN, "add_generation_prompt": True},
        {"messages": USER},
        {"messages": [*USER, {"role": "assistant", "content": None, "reasoning": "hm"}]},
    ],
)
async def test_a_message_that_cannot_be_continued_is_refused(
    server: Server, fields: dict[str, Any]
) -> None:
    for path in (CHAT, "/tokenize"):
        response = await server.http.post(path, json={**fields, "continue_final_message": True})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "continue_final_message")


async def test_a_prompt_is_any_text(server: Server) -> None:
    """Benchmarks make prompts of random tokens, among them control characters."""
    text = "".join(map(chr, range(32)))
    answer, _ = await ask(server, COMPLETIONS, prompt=text, echo=True, max_tokens=1)
    assert answer["choices"][0]["text"] == text + "\0"
    for content in (text, [{"type": "text", "text": text}]):
        chat, _ = await ask(server, CHAT, messages=[{"role": "user", "content": content}])
        assert text in chat["choices"][0]["message"]["content"]


async def test_a_clients_request_id_is_its_own_and_never_ours(server: Server) -> None:
    body = {"model": MODEL, "prompt": "ab", "request_id": "mine-1"}
    first, second = [await server.http.post(COMPLETIONS, json=body) for _ in range(2)]
    assert first.headers[CLIENT_REQUEST_ID_HEADER] == "mine-1"
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.json()["id"] != second.json()["id"]
    ids = {one.request_id for one in server.engine.of(Generate)}
    assert len(ids) == 2
    assert "mine-1" not in ids
    unfit = await server.http.post(COMPLETIONS, json={**body, "request_id": "a\r\nb"})
    assert unfit.status_code == 200
    assert CLIENT_REQUEST_ID_HEADER not in unfit.headers


async def test_a_failure_is_logged_by_all_names_of_the_request(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.engine.refuse_with = "no pages"
    body = {"model": MODEL, "prompt": "ab", "request_id": "mine-2"}
    response = await server.http.post(COMPLETIONS, json=body)
    assert response.status_code == 500
    line = next(one for one in caplog.messages if "no pages" in one)
    assert response.headers["x-request-id"] in line
    assert "mine-2" in line
