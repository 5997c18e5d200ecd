"""What the engine is told of the fields that say what an answer must look like."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from openai import BadRequestError
from sluice_contract.config import EngineConfig
from sluice_runtime.errors import GrammarError, InvalidRequestError, UnsupportedFieldError
from sluice_runtime.grammar.json_schema import (
    ALONE,
    ANNOTATIONS,
    IGNORED,
    NOT_BESIDE,
    usable_schema,
)
from sluice_runtime.messages import Generate, Grammar
from sluice_runtime.server.parse import parse_request
from sluice_runtime.server.process import _model_text
from sluice_runtime.server.protocol import CompletionRequest
from sluice_runtime.server.structured import grammar_of

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.fake_engine import EOS

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {"type": "function", "function": {"name": "f"}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def wanted(**fields: Any) -> Grammar | None:
    body = {"model": "m", "prompt": "a", **fields}
    return grammar_of(parse_request(CompletionRequest, msgspec.json.encode(body)), [EOS])


def told(**fields: Any) -> tuple[str, Any, str]:
    grammar = wanted(**fields)
    assert grammar is not None
    assert grammar.end_token_ids == [EOS]
    structured = grammar.kind.endswith("json_schema")
    text = json.loads(grammar.text) if structured else grammar.text
    return grammar.kind, text, grammar.field


def refusal(**fields: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequestError) as error:
        wanted(**fields)
    return error.value.param, str(error.value)


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


async def test_text_needs_no_grammar() -> None:
    assert wanted() is None
    assert wanted(response_format={"type": "text"}) is None
    assert wanted(response_format=None, structured_outputs=None) is None


async def test_openai_spells_a_schema_as_response_format() -> None:
    field = "response_format.json_schema.schema"
    assert told(response_format=schema_format(CITY, strict=True)) == ("json_schema", CITY, field)
    assert told(response_format=schema_format(CITY)) == ("json_schema", CITY, field)
    assert told(response_format=schema_format(CITY, strict=False))[0] == "open_json_schema"


async def test_json_object_is_any_object() -> None:
    any_object = {"type": "object", "additionalProperties": True}
    assert told(response_format={"type": "json_object"})[:2] == ("json_schema", any_object)
    assert told(structured_outputs={"json_object": True})[:2] == ("json_schema", any_object)


@pytest.mark.parametrize(
    ("fields", "kind", "text", "field"),
    [
        ({"structured_outputs": {"json": CITY}}, "json_schema", CITY, "structured_outputs.json"),
        ({"guided_json": json.dumps(CITY)}, "json_schema", CITY, "guided_json"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"'}},
            "ebnf",
            'root ::= "a"',
            "structured_outputs.grammar",
        ),
        (
            {"guided_choice": ["yes", 'a "b"\\\n']},
            "ebnf",
            'root ::= "yes" | "a \\"b\\"\\\\\\n"',
            "guided_choice",
        ),
    ],
)
async def test_vllm_spells_them_otherwise(
    fields: dict[str, Any], kind: str, text: Any, field: str
) -> None:
    assert told(**fields) == (kind, text, field)


async def test_one_field_may_ask_for_one_thing() -> None:
    both = {"structured_outputs": {"regex": "a", "grammar": 'root ::= "a"'}}
    param, message = refusal(**both)
    assert param == "structured_outputs.grammar"
    assert "beside structured_outputs.regex" in message
    param, _ = refusal(response_format={"type": "json_object"}, guided_regex="a")
    assert param == "guided_regex"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems is not implemented"),
        ({"properties": {"a": {"not": {}}}}, "properties.a.not is not implemented"),
        ({"anyOf": [{"type": "null"}], "minLength": 1}, "minLength beside anyOf"),
        ({"$ref": "http://elsewhere/x"}, "$ref leads out of the schema"),
        ({"type": "integer", "enum": ["a"]}, "type beside enum"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf is implemented for type integer"),
        ({"type": "string", "pattern": "a", "maxLength": 2}, "pattern beside maxLength"),
        ({"type": "string", "pattern": "a", "format": "uuid"}, "pattern beside format"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength is more than maxLength"),
        ({"allOf": [{}, {}]}, "allOf of several schemas"),
        ({"items": 7}, "items is no schema"),
        ({"patternProperties": {"a": {}}, "properties": {}}, "patternProperties beside properties"),
        ({"type": "object", "properties": {'a"b': {}}}, "needs escapes"),
        ({"type": "object", "minProperties": 2}, "minProperties above 1"),
        ({"propertyNames": {}, "required": ["a"]}, "propertyNames beside required"),
        (
            {"type": "object", "required": ["a"], "additionalProperties": False},
            "required: 'a' is none of the properties",
        ),
    ],
)
async def test_what_a_schema_would_not_be_kept_to_is_refused(schema: Any, says: str) -> None:
    param, message = refusal(response_format=schema_format(schema))
    assert param == "response_format.json_schema.schema"
    assert message.startswith(param)
    assert says in message


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.text(max_size=2)),
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    *IGNORED, *ANNOTATIONS, *ALONE, *NOT_BESIDE, "type", "items", "properties",
                    "required", "minProperties", "minLength", "maxLength", "multipleOf",
                    "additionalProperties", "prefixItems",
                ]
            ),
            part,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
async def test_any_json_is_a_schema_or_refused(value: Any) -> None:
    with suppress(GrammarError):
        json.dumps(usable_schema(value))


async def test_a_deep_schema_and_a_long_one_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"items": deep}
    assert "64 deep" in refusal(guided_json=deep)[1]
    assert "at most 65536" in refusal(guided_regex="a" * 65_537)[1]
    assert refusal(guided_json="{")[0] == "guided_json"


async def test_what_is_required_is_a_property() -> None:
    text = told(guided_json={"type": "object", "required": ["a"]})[1]
    assert text["properties"] == {"a": True}
    assert text["additionalProperties"] is True


async def test_a_length_is_written_as_a_pattern() -> None:
    text = told(guided_json={"type": "string", "minLength": 2, "maxLength": 5})[1]
    assert text == {"type": "string", "pattern": "^.{2,5}$"}


async def test_an_answer_must_be_able_to_end() -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "a", "guided_regex": "a"})
    with pytest.raises(UnsupportedFieldError, match="a model that names one") as error:
        grammar_of(parse_request(CompletionRequest, body), [])
    assert error.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
    ],
)
async def test_a_model_that_can_be_held_to_no_form_says_so_and_serves_all_else(
    server: Server, fields: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.service.text is not None
    formless = dataclasses.replace(server.service.text, formless="its decoder is WordPiece")
    monkeypatch.setattr(server.service, "text", formless)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    response = await server.http.post("/v1/chat/completions", json=chat | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
    assert (error["param"], error["message"]) == (param, f"{param}: its decoder is WordPiece")
    assert (await server.http.post("/v1/chat/completions", json=chat)).status_code == 200
    assert len(server.engine.of(Generate)) == 1


async def test_what_a_models_tokenizer_forbids_is_said_once_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}))
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    config = EngineConfig.model_validate({"model": {"uri": str(tmp_path)}})
    text = _model_text(config)
    assert "its decoder is WordPiece" in (text.formless or "")
    (line,) = caplog.messages
    assert line.startswith("structured output is not served: tokenizer.json: its decoder")
    dummy = EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}})
    assert _model_text(dummy).formless is None


async def test_the_engine_is_told_with_every_choice(server: Server) -> None:
    await server.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        n=2,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}},
    )
    asked = [message for message in server.engine.heard if isinstance(message, Generate)]
    assert [m.grammar and m.grammar.kind for m in asked] == ["json_schema", "json_schema"]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_engine_cannot_compile_is_a_400(server: Server, stream: bool) -> None:
    server.engine.refuse_with, server.engine.refusal = "guided_regex: no ) there", "invalid"
    with pytest.raises(BadRequestError) as error:
        await server.openai.completions.create(
            model=MODEL, prompt="a", stream=stream, extra_body={"guided_regex": "(a"}
        )
    assert error.value.param == "guided_regex"
    assert "no ) there" in str(error.value)
