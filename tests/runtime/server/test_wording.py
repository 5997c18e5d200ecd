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
    ("model", 1, "model: Input should be a valid string; got 1"),
    ("stream", "yes", 'stream: Input should be a valid boolean; got "yes"'),
    ("temperature", "1", 'temperature: Input should be a valid number; got "1"'),
    ("temperature", -1, "temperature: Input should be greater than or equal to 0; got -1"),
    ("temperature", 2.5, "temperature: Input should be less than or equal to 2; got 2.5"),
    ("top_p", 0, "top_p: Input should be greater than 0; got 0"),
    (
        "top_k",
        2**31,
        "top_k: Input should be less than 2147483648; got 2147483648",
    ),
    ("n", 0, "n: Input should be greater than or equal to 1; got 0"),
    (
        "stream_options",
        {"include_use": True},
        "stream_options.include_use: unknown field; did you mean include_usage? allowed: "
        "continuous_usage_stats, include_obfuscation, include_usage (strictRequests)",
    ),
    ("max_tokens", "5", 'max_tokens: Input should be a valid integer; got "5"'),
    ("max_tokens", 1.5, "max_tokens: Input should be a valid integer; got 1.5"),
    ("stop", "", 'stop: String should have at least 1 character; got ""'),
    ("stop", "x" * 1025, f'stop: String should have at most 1024 characters; got "{"x" * 59}…'),
    (
        "cache_salt",
        "x" * 257,
        f'cache_salt: String should have at most 256 characters; got "{"x" * 59}…',
    ),
    (
        "guided_regex",
        "\0",
        'guided_regex: "\\u0000" is not allowed; allowed: text without the character NUL',
    ),
    ("stop_token_ids", 5, "stop_token_ids: Input should be a valid array; got 5"),
    (
        "stop_token_ids",
        [0] * 65,
        "stop_token_ids: List should have at most 64 items after validation, not 65; got ["
        + "0," * 29
        + "0…",
    ),
    ("prompt", [], "prompt: List should have at least 1 item after validation, not 0; got []"),
    (
        "prompt",
        5,
        f"prompt: Input should be {PROMPTS}; got 5",
    ),
    ("prompt", [None], f"prompt: Input should be {PROMPTS}; got [null]"),
    ("prompt", ["a", 1], "prompt[1]: Input should be a valid string; got 1"),
    ("prompt", [[1], "a"], 'prompt[1]: Input should be a valid array; got "a"'),
    ("stop", ["a", 1], "stop[1]: Input should be a valid string; got 1"),
    ("stop", 1, "stop: Input should be a string or a list of at most 64 strings; got 1"),
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
        'logit_bias: Input should be less than or equal to 100; got {"5":101}',
    ),
    (
        "stream_options",
        {"include_usage": 1},
        "stream_options.include_usage: Input should be a valid boolean; got 1",
    ),
    ("lora_path", "a", 'lora_path: not implemented yet: Input should be null; got "a"'),
    ("stream_options", 1, "stream_options: Input should be an object; got 1"),
]
CHAT_CASES: list[tuple[str, Any, str]] = [
    (
        "messages",
        [{"role": "judge", "content": "a"}],
        "messages[0].role: Input should be 'system', 'developer', 'user', 'assistant', 'tool' "
        "or 'function'; got \"judge\"",
    ),
    ("messages", ["hi"], 'messages[0]: Input should be an object; got "hi"'),
    (
        "messages",
        [{"content": "a"}],
        "messages[0].role: Field required; "
        "allowed: 'system', 'developer', 'user', 'assistant', 'tool' or 'function'",
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
    with pytest.raises(InvalidRequestError, match=f"^request_id: String should have {words}; got"):
        parse_body(AbortRequest, msgspec.json.encode({"request_id": name}))
