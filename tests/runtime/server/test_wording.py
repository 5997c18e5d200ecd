"""Every kind of finding that the request models can make, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.router import RouterConfig
from sluice_contract.error_text import WORDS
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.validate import ServiceDocument
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.body import parse_body, parse_request
from sluice_runtime.server.protocol import (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from sluice_simulator.costs import Cost

CHAT = [{"role": "user", "content": "hi"}]

COMPLETION_CASES: list[tuple[str, Any, str]] = [
    ("model", 1, "model: 1 is not allowed; allowed: a string"),
    ("stream", "yes", 'stream: "yes" is not allowed; allowed: true or false'),
    ("temperature", "1", 'temperature: "1" is not allowed; allowed: a number'),
    ("temperature", -1, "temperature: -1 is not allowed; allowed: 0 to 2"),
    ("temperature", 2.5, "temperature: 2.5 is not allowed; allowed: 0 to 2"),
    ("top_p", 0, "top_p: 0 is not allowed; allowed: more than 0 and 1 or less"),
    (
        "top_k",
        2**31,
        "top_k: 2147483648 is not allowed; allowed: -1 or more and less than 2147483648",
    ),
    ("n", 0, "n: 0 is not allowed; allowed: 1 to 16"),
    (
        "stream_options",
        {"include_use": True},
        "stream_options.include_use: unknown field; did you mean include_usage? allowed: "
        "continuous_usage_stats, include_obfuscation, include_usage (strictRequests)",
    ),
    ("max_tokens", "5", 'max_tokens: "5" is not allowed; allowed: an integer'),
    ("max_tokens", 1.5, "max_tokens: 1.5 is not allowed; allowed: an integer"),
    ("stop", "", 'stop: "" is not allowed; allowed: at least 1 character'),
    ("stop", "x" * 1025, f'stop: "{"x" * 59}… is not allowed; allowed: at most 1024 characters'),
    (
        "cache_salt",
        "x" * 257,
        f'cache_salt: "{"x" * 59}… is not allowed; allowed: at most 256 characters',
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
        "stop_token_ids: [" + "0," * 29 + "0… is not allowed; allowed: a list of at most 64 items",
    ),
    ("prompt", [], "prompt: [] is not allowed; allowed: a list of at least 1 item"),
    (
        "prompt",
        5,
        "prompt: 5 is not allowed; allowed: "
        "a string, a list of strings, a list of token ids or a list of such lists",
    ),
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
    ("logit_bias", {"5": 101}, 'logit_bias: {"5":101} is not allowed; allowed: -100 to 100'),
    (
        "stream_options",
        {"include_usage": 1},
        "stream_options.include_usage: 1 is not allowed; allowed: true or false",
    ),
    ("lora_path", "a", 'lora_path: "a" is not implemented yet; allowed: leaving it out'),
    ("stream_options", 1, "stream_options: 1 is not allowed; allowed: an object"),
]
CHAT_CASES: list[tuple[str, Any, str]] = [
    (
        "messages",
        [{"role": "judge", "content": "a"}],
        'messages[0].role: "judge" is not allowed; '
        'allowed: "system", "developer", "user", "assistant" or "tool"',
    ),
    ("messages", ["hi"], 'messages[0]: "hi" is not allowed; allowed: an object'),
    ("messages", [{"content": "a"}], "messages[0].role: is required"),
    (
        "messages",
        [{"role": "user", "content": "a", "x": 1}],
        "messages[0].x: unknown field; allowed: annotations, audio, content, function_call, name, "
        "reasoning_content, refusal, role, tool_call_id, tool_calls (strictRequests)",
    ),
    (
        "messages",
        [{"rol": "user", "content": "a"}],
        "messages[0].rol: unknown field; did you mean role? allowed: annotations, audio, content, "
        "function_call, name, reasoning_content, refusal, role, tool_call_id, tool_calls "
        "(strictRequests)",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"schem": {}}},
        "response_format.json_schema.schem: unknown field; did you mean schema? "
        "allowed: description, name, schema, strict (strictRequests)",
    ),
    (
        "tool_choice",
        {"type": "function", "function": {"nam": "f"}},
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


@pytest.mark.parametrize(("name", "words"), [("", "at least 1"), ("x" * 129, "at most 128")])
def test_the_allowed_length_of_a_text_is_in_characters(name: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^request_id: .* allowed: {words} character"):
        parse_body(AbortRequest, msgspec.json.encode({"request_id": name}))


FINDINGS: dict[str, set[str]] = {
    "any": set(),
    "bool": {"bool_type"},
    "default": set(),
    "definition-ref": set(),
    "definitions": set(),
    "dict": {"dict_type"},
    "float": {"float_type", "finite_number"},
    "function-after": {"value_error"},
    "function-before": {"value_error"},
    "function-plain": {"value_error"},
    "enum": {"enum"},
    "int": {"int_type", "int_from_float"},
    "list": {"list_type"},
    "literal": {"literal_error"},
    "model": {"model_type"},
    "model-field": {"missing"},
    "model-fields": {"dict_type", "extra_forbidden"},
    "none": {"none_required"},
    "nullable": set(),
    "str": {"string_type"},
    "tuple": {"tuple_type"},
    "union": set(),
}
CONSTRAINTS: dict[str, dict[str, str]] = {
    "float": {
        "ge": "greater_than_equal",
        "gt": "greater_than",
        "le": "less_than_equal",
        "lt": "less_than",
    },
    "dict": {"max_length": "too_long"},
    "list": {"min_length": "too_short", "max_length": "too_long"},
    "str": {
        "min_length": "string_too_short",
        "max_length": "string_too_long",
        "pattern": "string_pattern_mismatch",
    },
}
CONSTRAINTS["int"] = CONSTRAINTS["float"]
NO_CONSTRAINT = {
    "type", "strict", "fail_fast", "items_schema", "keys_schema", "values_schema", "metadata",
    "ref", "serialization",
}  # fmt: skip


def findings_of(schema: Any) -> Iterator[str]:
    """What validation by a pydantic-core schema can find; fails on a part it does not know."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from findings_of(part)
    if not isinstance(schema, dict):
        return
    if isinstance(kind := schema.get("type"), str):
        yield from FINDINGS[kind]
        if kind in CONSTRAINTS:
            for key in schema.keys() - NO_CONSTRAINT:
                yield CONSTRAINTS[kind][key]
    for key, part in schema.items():
        if key not in ("metadata", "serialization", "config", "function"):
            yield from findings_of(part)


MODELS: list[type[BaseModel]] = [
    CompletionRequest, ChatRequest, EngineConfig, RouterConfig, Cost, ServiceDocument,
    EnginePoolSpec,
]  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_there_are_words_for_all_that_a_model_can_find(kind: type[BaseModel]) -> None:
    found = set(findings_of(kind.__pydantic_core_schema__))
    assert "greater_than_equal" in found
    assert found - {"missing", "extra_forbidden"} <= WORDS.keys()


def test_there_are_no_words_for_what_no_model_can_find() -> None:
    schemas = [kind.__pydantic_core_schema__ for kind in MODELS]
    assert WORDS.keys() <= set(findings_of(schemas)) | {"json_invalid"}
