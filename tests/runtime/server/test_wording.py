"""What refusals of requests say, by the kind of the finding."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.body import parse_body, parse_request
from sluice_runtime.server.protocol import (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)

PROMPTS = "a string, a list of strings, a list of token ids or a list of such lists"
CHAT = [{"role": "user", "content": "hi"}]

COMPLETION_CASES: list[tuple[str, Any, str]] = [
    ("model", 1, "model: 1 is not allowed; allowed: a string"),
    ("stream", "yes", 'stream: "yes" is not allowed; allowed: true or false'),
    ("temperature", "1", 'temperature: "1" is not allowed; allowed: a number from 0 to 2'),
    ("temperature", -1, "temperature: -1 is not allowed; allowed: a number from 0 to 2"),
    ("temperature", 2.5, "temperature: 2.5 is not allowed; allowed: a number from 0 to 2"),
    ("top_p", 0, "top_p: 0 is not allowed; allowed: a number, above 0, at most 1"),
    (
        "top_k",
        2**31,
        "top_k: 2147483648 is not allowed; allowed: a whole number from -1 to 2147483647",
    ),
    ("n", 0, "n: 0 is not allowed; allowed: a whole number from 1 to 16"),
    (
        "stream_options",
        {"include_use": True},
        "stream_options.include_use: unknown field; did you mean include_usage? allowed: "
        "continuous_usage_stats, include_obfuscation, include_usage (strictRequests)",
    ),
    (
        "max_tokens",
        "5",
        'max_tokens: "5" is not allowed; allowed: a whole number from 0 to 9223372036854775807',
    ),
    (
        "max_tokens",
        1.5,
        "max_tokens: 1.5 is not allowed; allowed: a whole number from 0 to 9223372036854775807",
    ),
    ("stop", "", 'stop: "" is not allowed; allowed: at least 1 character'),
    (
        "stop",
        "x" * 1025,
        'stop: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… is not '
        "allowed; allowed: at most 1024 characters",
    ),
    (
        "cache_salt",
        "x" * 257,
        'cache_salt: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… is '
        "not allowed; allowed: at most 256 characters",
    ),
    (
        "guided_regex",
        "\0",
        'guided_regex: "\\u0000" is not allowed; allowed: text without the character NUL',
    ),
    ("stop_token_ids", 5, "stop_token_ids: 5 is not allowed; allowed: a list"),
    (
        "stop_token_ids",
        [0] * 65,
        "stop_token_ids: [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0… "
        "is not allowed; allowed: at most 64 items",
    ),
    ("prompt", [], "prompt: [] is not allowed; allowed: at least 1 item"),
    (
        "prompt",
        5,
        "prompt: 5 is not allowed; allowed: a string, a list of strings, a list of token "
        "ids or a list of such lists",
    ),
    (
        "prompt",
        [None],
        "prompt: [null] is not allowed; allowed: a string, a list of strings, a list of "
        "token ids or a list of such lists",
    ),
    ("prompt", ["a", 1], "prompt[1]: 1 is not allowed; allowed: a string"),
    ("prompt", [[1], "a"], 'prompt[1]: "a" is not allowed; allowed: a list'),
    ("stop", ["a", 1], "stop[1]: 1 is not allowed; allowed: a string"),
    ("stop", 1, "stop: 1 is not allowed; allowed: a string or a list of at most 64 strings"),
    (
        "logit_bias",
        {str(token): 1 for token in range(1025)},
        'logit_bias: {"0":1,"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1… is not allowed; '
        "allowed: an object of at most 1024 items",
    ),
    (
        "logit_bias",
        {"a": 1},
        'logit_bias: {"a":1} is not allowed; allowed: an object whose keys are token ids',
    ),
    (
        "logit_bias",
        {"97": -100, "097": 100},
        'logit_bias: {"97":-100,"097":100} is not allowed; '
        "allowed: an object that has each token id once, however it is spelled",
    ),
    (
        "logit_bias",
        {"5": 101},
        'logit_bias: {"5":101} is not allowed; allowed: a number, at most 100',
    ),
    (
        "stream_options",
        {"include_usage": 1},
        "stream_options.include_usage: 1 is not allowed; allowed: true or false",
    ),
    ("lora_path", "a", 'lora_path: not implemented yet: "a" is not allowed; allowed: null'),
    (
        "stream_options",
        1,
        "stream_options: 1 is not allowed; allowed: an object with "
        "continuous_usage_stats, include_obfuscation, include_usage",
    ),
]
CHAT_CASES: list[tuple[str, Any, str]] = [
    (
        "messages",
        [{"role": "judge", "content": "a"}],
        "messages[0].role: \"judge\" is not allowed; allowed: 'system', 'developer', "
        "'user', 'assistant', 'tool' or 'function'",
    ),
    (
        "messages",
        ["hi"],
        'messages[0]: "hi" is not allowed; allowed: an object with annotations, audio, '
        "content, function_call, name, reasoning, reasoning_content, refusal, role, "
        "tool_call_id, tool_calls",
    ),
    (
        "messages",
        [{"content": "a"}],
        "messages[0].role: required; allowed: 'system', 'developer', 'user', "
        "'assistant', 'tool' or 'function'",
    ),
    (
        "messages",
        [{"role": "user", "content": "a", "x": 1}],
        "messages[0].x: unknown field; allowed: annotations, audio, content, function_call, name, "
        "reasoning, reasoning_content, refusal, role, tool_call_id, tool_calls (strictRequests)",
    ),
    (
        "messages",
        [{"rol": "user", "content": "a"}],
        "messages[0].rol: unknown field; did you mean role? allowed: annotations, audio, content, "
        "function_call, name, reasoning, reasoning_content, refusal, role, tool_call_id, "
        "tool_calls (strictRequests)",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a", "schem": {}}},
        "response_format.json_schema.schem: unknown field; did you mean schema? "
        "allowed: description, name, schema, strict (strictRequests)",
    ),
    (
        "tool_choice",
        {"type": "function", "function": {"name": "f", "nam": "g"}},
        "tool_choice.function.nam: unknown field; did you mean name? allowed: name "
        "(strictRequests)",
    ),
]


def refused(kind: type[GenerationRequest], body: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequestError) as error:
        parse_request(kind, msgspec.json.encode(body), strict=True)
    return str(error.value)


@pytest.mark.parametrize(("field", "value", "words"), COMPLETION_CASES)
def test_a_completions_refusal_names_field_value_and_what_is_allowed(
    field: str, value: Any, words: str
) -> None:
    body = {"model": "m", "prompt": "a", "stream": True, field: value}
    assert refused(CompletionRequest, body) == words


@pytest.mark.parametrize(("field", "value", "words"), CHAT_CASES)
def test_a_chats_refusal_names_field_value_and_what_is_allowed(
    field: str, value: Any, words: str
) -> None:
    assert refused(ChatRequest, {"model": "m", "messages": CHAT, field: value}) == words


@pytest.mark.parametrize(
    ("name", "words"), [("", "at least 1 character"), ("x" * 129, "at most 128 characters")]
)
def test_the_allowed_length_of_a_text_is_in_characters(name: str, words: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=f"^request_id: .* is not allowed; allowed: {words}$"
    ):
        parse_body(AbortRequest, msgspec.json.encode({"request_id": name}))
