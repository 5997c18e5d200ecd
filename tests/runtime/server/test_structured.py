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
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.errors import (
    GrammarError,
    GrammarUnavailableError,
    InvalidRequestError,
    UnsupportedFieldError,
)
from sluice_runtime.grammar.constraint import one_of
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.grammar.schema_keywords import IGNORED, IN_PLACE, MAPS, RESTRICTING
from sluice_runtime.server import structured
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.process import _model_text
from sluice_runtime.server.protocol import CompletionRequest
from sluice_runtime.server.structured import grammar_of
from sluice_runtime.wire.messages import Generate, Grammar

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
    answer = grammar_of(
        parse_request(CompletionRequest, msgspec.json.encode(body), strict=False).request, [EOS]
    )
    return answer and answer.grammar


def told(**fields: Any) -> tuple[str, Any, str]:
    grammar = wanted(**fields)
    assert grammar is not None
    assert grammar.end_token_ids == [EOS]
    structured = grammar.kind == "json_schema"
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
    loose = {key: value for key, value in CITY.items() if key != "additionalProperties"}
    assert told(response_format=schema_format(loose)) == ("json_schema", CITY, field)
    assert told(response_format=schema_format(loose, strict=False)) == ("json_schema", loose, field)


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
            "lark",
            one_of(["yes", 'a "b"\\\n']),
            "guided_choice",
        ),
    ],
)
async def test_vllms_fields_constrain_the_answer(
    fields: dict[str, Any], kind: str, text: Any, field: str
) -> None:
    assert told(**fields) == (kind, text, field)


async def test_only_one_field_may_constrain_the_answer() -> None:
    both = {"structured_outputs": {"regex": "a", "grammar": 'root ::= "a"'}}
    param, message = refusal(**both)
    assert param == "structured_outputs.grammar"
    assert "beside structured_outputs.regex" in message
    param, _ = refusal(response_format={"type": "json_object"}, guided_regex="a")
    assert param == "guided_regex"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"uniqueItems": True}, "uniqueItems: true is not implemented; allowed: leaving it out"),
        ({"contains": False}, "contains: false is not implemented; allowed: leaving it out"),
        (
            {"contains": {}, "minContains": 2},
            "contains: {} is not implemented; allowed: leaving it out",
        ),
        ({"properties": {"a": {"not": {}}}}, "properties.a.not: {} is not implemented; allowed"),
        ({"const": 1, "minimum": 2}, "Unsatisfiable schema: "),
        ({"$ref": "#", "minimum": 1}, '$ref: "#" leads to itself; allowed: a reference to another'),
        ({"then": {}, "if": {}}, "if: {} is not implemented; allowed: leaving it out"),
        ({"$ref": "http://x"}, "Resource 'http://x' is not present in a registry"),
        (
            {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"y": {}}},
            "properties.a.$ref: Pointer '/$defs/x' does not exist",
        ),
        ({"$ref": "#/title", "title": "a"}, 'title: "a" is no schema; allowed: an object, true or'),
        ({"$ref": "#a", "$defs": {}}, "Anchor 'a' does not exist"),
        ({"type": "integer", "enum": ["a"]}, "Unsatisfiable schema: "),
        ({"multipleOf": 1025}, "multipleOf: 1025 is not allowed; allowed: a number above 0, to 1"),
        ({"pattern": "x", "format": "uuid"}, "Unsatisfiable schema: Regex is empty"),
        (
            {"pattern": "(?=a)"},
            "pattern: look-around, including look-ahead and look-behind, is not supported",
        ),
        (
            {"properties": {f"p{i}": {} for i in range(1001)}},
            "properties: 1001 is not allowed; allowed: at most 1000 of them",
        ),
        (
            {"allOf": [{"anyOf": [{"minLength": i} for i in range(40)]}] * 2},
            "leads to too many combinations of alternatives; allowed: at most 1000 of them",
        ),
        ({"items": 7}, "items: 7 is no schema; allowed: an object, true or false"),
        ({"minProperties": 2}, "minProperties: 2 is not implemented; allowed: 0 or 1"),
        (
            {"propertyNames": {"maxLength": 3, "pattern": "a"}},
            'propertyNames: {"maxLength":3,"pattern":"a"} is not implemented; allowed: an "enum"',
        ),
        (
            {"unevaluatedProperties": False, "anyOf": [{"properties": {"a": {}}}, {}]},
            "unevaluatedProperties: false is not implemented; allowed: beside properties and refer",
        ),
        ({"patternProperties": {"^a": {}, "b$": {}}}, "are not disjoint"),
        (
            {"type": "object", "required": ["a"], "additionalProperties": False},
            'required: "a" is not allowed; allowed: names of properties',
        ),
    ],
)
async def test_what_the_library_would_ignore_in_a_schema_is_refused(schema: Any, says: str) -> None:
    param, message = refusal(response_format=schema_format(schema))
    assert param == "response_format.json_schema.schema"
    assert message.startswith(param)
    assert says in message


MALFORMED_VALUES: list[tuple[str, list[Any]]] = [
    ("minItems", [-1, 1.5, "3"]),
    ("maxItems", [-1, 1.5, "3"]),
    ("minLength", [-1, 1.5, "3"]),
    ("minimum", ["3", None]),
    ("exclusiveMaximum", ["3", None]),
    ("required", ["a", [1]]),
    ("anyOf", [{}, 3]),
    ("oneOf", [{}, 3]),
    ("enum", [{}, 3]),
    ("allOf", [{}, 3]),
    ("properties", [[1]]),
    ("pattern", [7, "(a"]),
    ("format", [None]),
    ("type", ["foo", ["string", 7], None, {}]),
]
MALFORMED: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 1e23},
    {"type": "integer", "multipleOf": 0},
    *({key: value} for key, values in MALFORMED_VALUES for value in values),
]
"""Schemas with a keyword that means nothing as it is set."""


@pytest.mark.parametrize("schema", MALFORMED, ids=str)
async def test_a_malformed_schema_is_refused_by_its_place(schema: dict[str, Any]) -> None:
    for outer, place in (
        ({"type": "object", "properties": {"a": {"items": schema}}}, "properties.a.items"),
        ({"$ref": "#/$defs/a", "$defs": {"a": schema}}, "$defs.a"),
        (schema, ""),
    ):
        param, message = refusal(guided_json=outer)
        assert param == "guided_json"
        assert message.startswith(f"guided_json: {place}")
        assert "<non-verbose/>" not in message
        assert "\n" not in message


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": []},
        {"enum": []},
        {"type": []},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "number", "minimum": 0.5, "maximum": 0.25},
    ],
)
async def test_a_schema_without_values_is_refused_where_one_is_required(schema: Any) -> None:
    """An array of them is empty."""
    outer = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert "guided_json: properties.a: Unsatisfiable schema" in refusal(guided_json=outer)[1]
    assert wanted(guided_json={"type": "array", "items": schema}) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**62), "maximum": 2**62},
        {"type": "integer", "minimum": 1e3, "exclusiveMaximum": 2.0e3, "multipleOf": 1024},
        {"type": "number", "minimum": 0.5, "multipleOf": 0.01},
        {"type": "array", "prefixItems": [{}], "items": {}, "minItems": 0, "maxItems": 2**31 - 1},
        {"type": ["boolean", "integer", "null", "number", "string"]},
        {"enum": [None, 1e23, 2**63 - 1, {"minItems": -1}]},
        {
            "type": "object",
            "properties": {"minItems": {}, 'a"b': {}},
            "patternProperties": {"^x": {}},
            "required": [],
            "additionalProperties": False,
        },
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/c"}, "c": {"type": "null"}}},
    ],
)
async def test_a_schema_that_the_library_takes_is_passed_on(schema: Any) -> None:
    assert told(guided_json=schema)[1] == schema


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ({"pattern": "^a"}, {"patternProperties": {"^a": {"type": "null"}}}),
        ({"enum": ["a", "b"]}, {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}),
        ({"type": "string", "const": "a"}, {"properties": {"a": {"type": "null"}}}),
    ],
)
async def test_names_of_properties_become_properties(names: Any, kept: dict[str, Any]) -> None:
    """As pydantic writes dictionaries of enums and of patterns."""
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "null"}}
    told_schema = told(guided_json=schema)[1]
    assert told_schema == {"type": "object", "additionalProperties": False} | kept


async def test_a_schema_is_asked_for_where_it_is_missing_and_only_there() -> None:
    field = "response_format.json_schema"
    missing = refusal(response_format={"type": "json_schema"})
    assert missing == (field, f'{field}: required with type "json_schema"')
    given = refusal(response_format=schema_format({}) | {"type": "text"})
    assert given == (
        field,
        f'{field}: {{"name":"x","schema":{{}}}} is not allowed with type "text"; '
        'allowed: with type "json_schema"',
    )


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.text(max_size=2)),
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [*IGNORED, *IN_PLACE, *RESTRICTING, *MAPS, "title"]
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
    assert "allowed: 64 deep" in refusal(guided_json=deep)[1]
    assert "at most 65536" in refusal(guided_regex="a" * 65_537)[1]
    assert refusal(guided_json="{")[0] == "guided_json"


async def test_the_characters_of_choices_are_counted_as_the_client_wrote_them() -> None:
    lines = ["\n" * 1_600 + str(number) for number in range(10, 50)]
    assert len(told(guided_choice=lines)[1]) > 65_536
    assert refusal(structured_outputs={"choice": ["ab" * 20_000, "\n" * 25_537]}) == (
        "structured_outputs.choice",
        "structured_outputs.choice: 65537 characters are not allowed; allowed: at most 65536",
    )


async def test_the_characters_of_a_schema_are_counted_as_it_is_compiled() -> None:
    long = {"enum": ["\n" * 40_000]}
    said = f"guided_json: {13 + 80_000} characters, as it is compiled, are not allowed; allowed: at"
    assert refusal(guided_json=long)[1].startswith(said)


async def test_what_is_required_is_a_property() -> None:
    text = told(guided_json={"type": "object", "required": ["a"]})[1]
    assert text["properties"] == {"a": True}
    assert text["additionalProperties"] is True


@pytest.mark.parametrize(
    ("schema", "added"),
    [
        ({"minimum": 5}, {"type": ["number"]}),
        ({"maxLength": 5}, {"type": ["string"]}),
        ({"format": "date", "minimum": 5}, {"type": ["number", "string"]}),
        ({"minItems": 1}, {"type": ["array"]}),
        ({"items": {}}, {"type": ["array"]}),
        ({"maxProperties": 1}, {"type": ["object"], "additionalProperties": True}),
        ({"type": ["null", "object"]}, {"additionalProperties": True}),
        ({}, {}),
        ({"enum": [{}]}, {}),
    ],
)
async def test_a_schema_without_a_type_gets_the_type_of_its_keywords(
    schema: Any, added: dict[str, Any]
) -> None:
    assert usable_schema(schema) == schema | added


async def test_an_answer_must_be_able_to_end() -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "a", "guided_regex": "a"})
    with pytest.raises(UnsupportedFieldError, match="a model that names one") as error:
        grammar_of(parse_request(CompletionRequest, body, strict=False).request, [])
    assert error.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
    ],
)
async def test_a_model_without_structured_output_refuses_it_and_serves_the_rest(
    server: Server, fields: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.service.text is not None
    unavailable = dataclasses.replace(
        server.service.text, structured_output_unavailable="its decoder is WordPiece"
    )
    monkeypatch.setattr(server.service, "text", unavailable)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    response = await server.http.post("/v1/chat/completions", json=chat | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
    assert (error["param"], error["message"]) == (param, f"{param}: its decoder is WordPiece")
    assert (await server.http.post("/v1/chat/completions", json=chat)).status_code == 200
    assert len(server.engine.of(Generate)) == 1


async def test_a_tokenizer_without_structured_output_is_logged_once_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}))
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 2}')
    config = EngineConfig.model_validate({"model": {"uri": str(tmp_path)}})
    text = _model_text(config)
    assert "its decoder is WordPiece" in (text.structured_output_unavailable or "")
    (line,) = caplog.messages
    assert line.startswith("structured output is not served: tokenizer.json: its decoder")
    dummy = EngineConfig.model_validate({"model": {"uri": "dummy://qwen3-tiny"}})
    assert _model_text(dummy).structured_output_unavailable is None


async def test_every_choice_has_the_grammar(server: Server) -> None:
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
            model=MODEL, prompt="a", stream=stream, extra_body={"guided_regex": "a"}
        )
    assert error.value.param == "guided_regex"
    assert "no ) there" in str(error.value)


async def test_a_grammar_that_the_library_fails_with_is_a_503(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise GrammarUnavailableError("the grammar library failed with it")

    monkeypatch.setattr(structured, "refuse_unusable", fails)
    body = {"model": MODEL, "prompt": "a", "guided_regex": "a"}
    response = await server.http.post("/v1/completions", json=body)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "grammar_unavailable"
    assert response.json()["error"]["message"].startswith("guided_regex: the grammar library")
