"""A table of bad inputs: status, field at fault, what the message must say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sluice_runtime.server.tools.formats import HERMES
from sluice_runtime.wire.messages import Refusal

from tests.runtime.server.conftest import MAX_BODY_BYTES, MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f"}}
_USER = [{"role": "user", "content": "hi"}]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "a", **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": _USER, **fields}


def replayed(arguments: object) -> dict[str, Any]:
    """A conversation in which a function was called with these."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return chat(messages=[*_USER, {"role": "assistant", "tool_calls": [call]}])


HALF = r'{"const": "\ud800"}'
"""JSON with half a surrogate pair, which is no text."""
ARGUMENTS = "messages[1].tool_calls[0].function.arguments"

CASES: list[tuple[str, dict[str, Any], str | None, str]] = [
    (COMPLETIONS, {"model": MODEL}, "prompt", "required"),
    (COMPLETIONS, completion(prompt=""), "prompt", "0 tokens"),
    (COMPLETIONS, completion(prompt=5), "prompt", "a list of token ids"),
    (COMPLETIONS, completion(prompt=[]), "prompt", "at least 1"),
    (COMPLETIONS, completion(prompt=[[]]), "prompt[0]", "at least 1"),
    (COMPLETIONS, completion(prompt=[259]), "prompt", "0 to 258"),
    (COMPLETIONS, completion(prompt=[-1]), "prompt[0]", "-1"),
    (COMPLETIONS, completion(prompt=["a", 1]), "prompt[1]", "1 is not allowed; allowed: a string"),
    (COMPLETIONS, completion(guided_regex="a\0b"), "guided_regex", "NUL"),
    (COMPLETIONS, completion(prompt="a" * 512), "prompt", "context length of 512"),
    (COMPLETIONS, completion(max_tokens=0), "max_tokens", "1 or more, or 0 with echo"),
    (
        COMPLETIONS,
        completion(max_tokens=2**63),
        "max_tokens",
        "allowed: a whole number from 0 to 92233",
    ),
    (COMPLETIONS, completion(max_tokens="5"), "max_tokens", "a whole number"),
    (COMPLETIONS, completion(max_tokens=1.5), "max_tokens", "a whole number"),
    (COMPLETIONS, completion(max_tokens=True), "max_tokens", "a whole number"),
    (COMPLETIONS, completion(temperature=-1), "temperature", "-1"),
    (COMPLETIONS, completion(temperature=2.1), "temperature", "from 0 to 2"),
    (COMPLETIONS, completion(top_p=0), "top_p", "above 0"),
    (COMPLETIONS, completion(top_k=-2), "top_k", "-1"),
    (COMPLETIONS, completion(n=0), "n", "1"),
    (COMPLETIONS, completion(n=17), "n", "16"),
    (COMPLETIONS, completion(seed=2**63), "seed", "allowed: a whole number"),
    (COMPLETIONS, completion(stop=["a"] * 65), "stop", "at most 64"),
    (COMPLETIONS, completion(stop=7), "stop", "a string or a list"),
    (COMPLETIONS, completion(stream_options={}), "stream_options", "stream"),
    (COMPLETIONS, completion(stream="yes"), "stream", "true or false"),
    (COMPLETIONS, completion(truncate_prompt_tokens=0), "truncate_prompt_tokens", "1 or more, or"),
    (COMPLETIONS, completion(use_beam_search=True), "use_beam_search", "not implemented yet"),
    (COMPLETIONS, completion(allowed_token_ids=[1]), "allowed_token_ids", "not implemented yet"),
    (CHAT, chat(modalities=["audio"]), "modalities[0]", "'text'"),
    (CHAT, chat(audio={"voice": "a"}), "audio", "not implemented yet: {"),
    (CHAT, chat(chat_template_kwargs={"tools": []}), "chat_template_kwargs", "given by the server"),
    (COMPLETIONS, completion(logprobs=6), "logprobs", "from 0 to 5"),
    (COMPLETIONS, completion(logprobs=True), "logprobs", "a whole number"),
    (COMPLETIONS, completion(prompt_logprobs=21), "prompt_logprobs", "from 0 to 20"),
    (COMPLETIONS, completion(echo=1), "echo", "true or false"),
    (
        COMPLETIONS,
        completion(suffix="x"),
        "suffix",
        "suffix: not implemented yet: \"x\" is not allowed; allowed: ''",
    ),
    (
        CHAT,
        chat(functions=[{"name": "f"}]),
        "functions",
        "an empty list",
    ),
    (
        COMPLETIONS,
        completion(best_of=2),
        "best_of",
        "best_of: not implemented yet: 2 is not allowed; allowed: 1",
    ),
    (COMPLETIONS, completion(logit_bias={"1": 101}), "logit_bias", "at most 100"),
    (COMPLETIONS, completion(logit_bias={"a": 1}), "logit_bias", "token ids"),
    (COMPLETIONS, completion(presence_penalty=2.1), "presence_penalty", "from -2 to 2"),
    (
        COMPLETIONS,
        completion(frequency_penalty=-2.1),
        "frequency_penalty",
        "from -2 to 2",
    ),
    (
        COMPLETIONS,
        completion(repetition_penalty=0.001),
        "repetition_penalty",
        "from 0.01 to 2",
    ),
    (COMPLETIONS, completion(min_p=1.1), "min_p", "from 0 to 1"),
    (COMPLETIONS, completion(min_tokens=-1), "min_tokens", "at least 0"),
    (COMPLETIONS, completion(min_tokens=9, max_tokens=8), "min_tokens", "at most 8"),
    (CHAT, chat(messages=[]), "messages", "at least 1"),
    (CHAT, chat(messages=[{"role": "tool", "content": "a"}]), "messages[0]", "tool_call_id"),
    (CHAT, chat(messages=[{"role": "user"}]), "messages[0]", "a message with content"),
    (CHAT, chat(messages=[{"role": "judge", "content": "a"}]), "messages[0].role", "'user'"),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        "messages[0].content[0].type",
        'this model reads no images); allowed: "text"',
    ),
    (CHAT, chat(guided_choice=["a", "\0"]), "guided_choice[1]", "NUL"),
    (CHAT, chat(chat_template_kwargs="x"), "chat_template_kwargs", "an object"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools[0].function", "required"),
    (CHAT, chat(tools=[{"type": "custom"}]), "tools[0].type", "'function'"),
    (CHAT, chat(tools=[TOOL], tool_choice="auto"), "tool_choice", "required"),
    (CHAT, chat(tool_choice="required"), "tool_choice", '"required" is not allowed without tools'),
    (CHAT, chat(tools=[TOOL, TOOL], tool_choice="required"), "tools", '"f"; allowed: a name once'),
    (
        CHAT,
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        "tool_choice.function.name",
        'tool_choice.function.name: "g" is not allowed; allowed: f, the tools\' names',
    ),
    (
        CHAT,
        chat(tools=[TOOL], tool_choice={"type": "function"}),
        "tool_choice.function",
        "required",
    ),
    (CHAT, chat(tools=[TOOL], tool_choice={}), "tool_choice.type", "required"),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "text"}]}]),
        "messages[0].content[0].text",
        "required",
    ),
    (CHAT, chat(messages=[{"role": "user", "content": {}}]), "messages[0].content", "text parts"),
    (CHAT, chat(tools=[TOOL], tool_choice="required", guided_regex="a"), "tools", "beside"),
    (CHAT, chat(structured_outputs={}), "structured_outputs", "exactly one of json, regex, choi"),
    (CHAT, chat(structured_outputs={"json": None}), "structured_outputs", "exactly one of json"),
    (
        CHAT,
        chat(structured_outputs={"json_object": False}),
        "structured_outputs.json_object",
        "json_object: false is not allowed; allowed: true",
    ),
    (
        CHAT,
        chat(structured_outputs={"json_object": False, "regex": "a"}),
        "structured_outputs.json_object",
        "allowed: true",
    ),
    (CHAT, chat(guided_json=HALF), "guided_json", "allowed: a JSON schema, as an object or as tex"),
    (CHAT, chat(guided_json='{"const": NaN}'), "guided_json", r'{\"const\": NaN}" is no JSON ('),
    (CHAT, chat(structured_outputs={"json": HALF}), "structured_outputs.json", "is no JSON (un"),
    (CHAT, replayed(5), ARGUMENTS, "a string"),
    (CHAT, replayed([]), ARGUMENTS, "a string"),
    (CHAT, chat(response_format={"type": "xml"}), "response_format.type", "'json_object'"),
    (CHAT, chat(max_tokens=0), "max_tokens", "from 1"),
    (
        CHAT,
        chat(max_tokens=2, max_completion_tokens=5),
        "max_completion_tokens",
        "5 beside max_tokens 2 is not allowed; allowed: one of the two, or the same in both",
    ),
    (CHAT, chat(logprobs=1), "logprobs", "true or false"),
    (CHAT, chat(top_logprobs=1), "top_logprobs", "logprobs true"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs", "from 0 to 20"),
]


async def test_bad_input_is_a_400_that_names_the_field(server: Server) -> None:
    for path, fields, param, says in CASES:
        response = await server.http.post(path, json=fields)
        error = response.json()["error"]
        case = f"{path} {fields}: {error}"
        assert response.status_code == 400, case
        assert error["type"] == "invalid_request_error", case
        assert error["param"] == param, case
        assert says in error["message"], case
        assert param is None or param in error["message"], case
    assert server.engine.heard == []


@pytest.mark.parametrize("size", [512, 6_000])
async def test_a_prompt_beyond_the_context_has_a_code_of_its_own(server: Server, size: int) -> None:
    response = await server.http.post(COMPLETIONS, json=completion(prompt="a" * size))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "512 tokens are not allowed; allowed: 1 to 511 in a prompt" in error["message"]
    empty = await server.http.post(COMPLETIONS, json=completion(prompt=""))
    assert empty.json()["error"]["code"] == "invalid_value"


async def test_a_routing_key_is_refused_with_its_value(server: Server) -> None:
    headers = {"x-sluice-routing-key": "a b"}
    response = await server.http.post(COMPLETIONS, json=completion(), headers=headers)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith('X-Sluice-Routing-Key: "a b" is not allowed; allowed: 1 to 128')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "a JSON object"),
        (b'{"model": "\xff"}', "not JSON"),
        (b'{"model": "\\ud800"}', "not JSON"),
        (b'{"temperature": NaN}', "not JSON"),
        (b'{"prompt": ' + b"[" * 20_000, "not JSON"),
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(
    server: Server, body: bytes, says: str
) -> None:
    response = await server.http.post(COMPLETIONS, content=body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


SCHEMA = '{"properties": {"x": {"enum": [1, -1e400]}}}'
"""With a number that JSON may write and no float holds."""
PLACE = "properties.x.enum[1]: so large a number is not allowed; allowed: -1.8e308 to 1.8e308"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (f'"guided_json": {SCHEMA}', "guided_json", f"guided_json: {PLACE}"),
        (f'"guided_json": {json.dumps(SCHEMA)}', "guided_json", f"guided_json: {PLACE}"),
        ('"guided_json": "1e400"', "guided_json", "guided_json: the schema: so large"),
        (f'"structured_outputs": {{"json": {SCHEMA}}}', "structured_outputs.json", PLACE),
        (
            '"response_format": {"type": "json_schema", "json_schema": '
            f'{{"name": "a", "schema": {SCHEMA}}}}}',
            "response_format.json_schema.schema",
            PLACE,
        ),
        *(
            (
                '"tools": [{"type": "function", "function": '
                f'{{"name": "f", "parameters": {SCHEMA}}}}}], "tool_choice": "{choice}"',
                "tools.f",
                f"tools.f: parameters.{PLACE}",
            )
            for choice in ("auto", "required")
        ),
    ],
)
async def test_a_number_in_a_schema_that_fits_no_float_is_a_400_with_its_path(
    server: Server, monkeypatch: pytest.MonkeyPatch, fields: str, param: str, says: str
) -> None:
    assert server.service.text is not None
    known = replace(server.service.text, tool_format=HERMES)
    monkeypatch.setattr(server.service, "text", known)
    body = f"{json.dumps(chat())[:-1]}, {fields}}}"
    response = await server.http.post(CHAT, content=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert server.engine.heard == []


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": None, "echo": False, "best_of": 1, "suffix": None, "logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "n": None, "stop": None},
        {"temperature": None, "top_p": 1, "user": "someone", "stream": False},
    ],
)
async def test_neutral_values_are_accepted(server: Server, fields: dict[str, Any]) -> None:
    response = await server.http.post(COMPLETIONS, json=completion(**fields))
    assert response.status_code == 200, response.text


async def test_a_number_of_many_digits_is_cut_short_in_its_refusal(server: Server) -> None:
    response = await server.http.post(COMPLETIONS, json=completion(min_tokens=int("1" * 4001)))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "min_tokens")
    assert error["message"].startswith(f"min_tokens: {'1' * 60}… is not allowed; allowed: at most ")
    assert len(error["message"]) < 250


async def test_both_limits_of_a_chats_answer_may_be_equal(server: Server) -> None:
    response = await server.http.post(CHAT, json=chat(max_tokens=2, max_completion_tokens=2))
    assert response.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_cap_is_a_413(server: Server, announced: bool) -> None:
    body = b"x" * (MAX_BODY_BYTES + 1)

    async def parts() -> Any:
        yield body

    response = await server.http.post(COMPLETIONS, content=body if announced else parts())
    assert response.status_code == 413
    assert str(MAX_BODY_BYTES) in response.json()["error"]["message"]


async def test_a_body_at_the_cap_is_read(server: Server) -> None:
    response = await server.http.post(COMPLETIONS, content=b" " * MAX_BODY_BYTES)
    assert response.status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", COMPLETIONS, 405), ("DELETE", "/health", 405)],
)
async def test_the_frameworks_errors_are_openais_too(
    server: Server, method: str, path: str, status: int
) -> None:
    response = await server.http.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert path in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, completion(model="other")),
        ("/generate", {"text": "a", "model": "other"}),
        (COMPLETIONS, completion(model="x" * 10_000)),
    ],
    ids=["completion", "generate", "a long name"],
)
async def test_another_model_is_a_404_that_names_ours(
    server: Server, path: str, fields: dict[str, Any]
) -> None:
    response = await server.http.post(path, json=fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (
        404,
        "model",
        "model_not_found",
    )
    assert MODEL in error["message"]
    assert len(error["message"]) < 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [(None, 500, None), ("overloaded", 429, "1"), ("unavailable", 503, "2")],
)
async def test_what_the_engine_refuses_has_a_status_also_when_streamed(
    server: Server, refusal: Refusal | None, status: int, retry_after: str | None, stream: bool
) -> None:
    server.engine.refuse_with, server.engine.refusal = "no pages", refusal
    response = await server.http.post(COMPLETIONS, json=completion(stream=stream))
    assert (response.status_code, response.headers.get("retry-after")) == (status, retry_after)
    assert response.json()["error"]["message"] == "no pages"


async def test_an_unexpected_error_is_a_500_without_details(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("sluice_runtime.server.generation.Generator.pieces", broken)
    response = await server.http.post(COMPLETIONS, json=completion(stream=True))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "secret" in caplog.text
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("given", "echoed"), [("abc-1", True), ("a b", False), ("x" * 129, False), (None, False)]
)
async def test_every_response_has_a_request_id(
    server: Server, given: str | None, echoed: bool
) -> None:
    headers = {} if given is None else {"x-request-id": given}
    for path in ("/health", "/nope"):
        answer = (await server.http.get(path, headers=headers)).headers["x-request-id"]
        assert (answer == given) if echoed else (len(answer) == 32)
