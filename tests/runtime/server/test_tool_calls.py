"""What tools mean for a plan: the prompt, the grammar, and the reading of the answer."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.grammar.constraint import json_rule, refuse_unusable
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.structured import grammar_of
from sluice_runtime.server.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
    tool_format_of,
)
from sluice_runtime.server.tools.plan import ToolPlan, plan_tools
from sluice_runtime.wire.messages import Grammar

from tests.pairwise import matrix
from tests.runtime.grammar.drawing import BYTES, accepts, matcher_of


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ tools }} <tool_call>", HERMES),
        ("<tool_call><function=name>", QWEN3_CODER),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("[TOOL_CALLS]{{ name }}[ARGS]", MISTRAL_NAMED),
        ("<|python_tag|>", LLAMA3),
        ('Respond in the format {"name": function name, "parameters": dictionary', LLAMA3),
        ("{{ messages }}", None),
    ],
)
def test_families_are_known_by_their_template(template: str, form: ToolFormat | None) -> None:
    assert tool_format_of(template) is form


def test_a_format_may_be_named() -> None:
    assert tool_format_of("<tool_call>", "llama3-json") is LLAMA3
    assert tool_format_of("", "mistral") is MISTRAL
    assert tool_format_of("[TOOL_CALLS]{{ name }}[ARGS]", "mistral") is MISTRAL_NAMED


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def plan(form: ToolFormat | None = HERMES, **fields: Any) -> ToolPlan | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = parse_request(ChatRequest, msgspec.json.encode(body), strict=False).request
    return plan_tools(request, form, {"[TOOL_CALLS]": 5}.get)


def held_to(**fields: Any) -> list[str]:
    """The lines of the grammar."""
    planned = plan(**fields)
    assert planned is not None
    assert planned.spec is not None
    assert (planned.spec.field, planned.spec.kind) == ("tools", "lark")
    return planned.spec.text.splitlines()


F, G = tool("f"), tool("g", parameters={"type": "object", "properties": {"x": {}}})


def test_without_tools_or_with_none_there_is_no_plan() -> None:
    assert plan() is None
    assert plan(tools=[]) is None
    assert plan(tools=[F], tool_choice="none") is None
    assert plan(None, tools=[F], tool_choice="none") is None


def test_auto_leaves_the_model_free() -> None:
    planned = plan(tools=[F])
    assert planned is not None
    assert planned.spec is None
    assert planned.shown == [F]
    with pytest.raises(InvalidRequestError, match="format of tool calls is not known"):
        plan(None, tools=[F])


def test_strict_tools_and_single_calls_constrain_calls_inside_text() -> None:
    strict = held_to(tools=[tool("f", strict=True), G])
    assert strict[0] == "start: call* TEXT"
    assert 'trigger[lazy]: /(.|\\n)*/ "<tool_call>"' in strict
    single = held_to(tools=[F], parallel_tool_calls=False)
    assert single[0] == "start: call | TEXT"


def test_required_and_named_tools_must_be_called_by_any_model() -> None:
    for form in (HERMES, None):
        start, call = held_to(form=form, tools=[F, G], tool_choice="required")
        assert start == 'start: call ("\\n" call)*'
        for name in "fg":
            begin = json.dumps(f'<tool_call>\n{{"name": "{name}", "arguments": ')
            assert begin in call
    start, call = held_to(tools=[F, G], tool_choice={"type": "function", "function": {"name": "g"}})
    assert start == "start: call"
    assert call.count("<tool_call>") == 1


RECORD = {
    "type": "object",
    "properties": {"k": {"type": "string"}},
    "required": ["k"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "r", "schema": RECORD}}


def grammar_beside_tools(**fields: Any) -> Grammar | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [F, G]}
    request = parse_request(ChatRequest, msgspec.json.encode(body | fields), strict=False).request
    planned = plan_tools(request, HERMES, dict[str, int]().get)
    answer = grammar_of(request, [9], planned.spec if planned else None)
    return answer and answer.grammar


@pytest.mark.parametrize(
    ("fields", "field", "schema"),
    [
        ({"response_format": FORMAT}, "response_format.json_schema.schema", RECORD),
        ({"response_format": {"type": "json_object"}}, "response_format", None),
        ({"guided_json": RECORD, "tool_choice": "auto"}, "guided_json", RECORD),
        ({"structured_outputs": {"json": RECORD}}, "structured_outputs.json", RECORD),
    ],
)
@pytest.mark.parametrize("parallel", [True, False])
def test_with_tools_and_a_schema_an_answer_is_json_or_calls(
    fields: dict[str, Any], field: str, schema: Any, parallel: bool
) -> None:
    held = grammar_beside_tools(**fields, parallel_tool_calls=parallel)
    assert held is not None
    assert (held.kind, held.field) == ("lark", f"tools, {field}")
    start, asked, call = held.text.splitlines()
    assert start == ('start: answer | call ("\\n" call)*' if parallel else "start: answer | call")
    assert asked == f"answer: {json_rule(schema or ANY_OBJECT)}"
    assert call.count("<tool_call>") == 2


def test_format_text_constrains_nothing_and_without_callable_tools_a_format_applies() -> None:
    assert grammar_beside_tools(response_format={"type": "text"}) is None
    without: tuple[dict[str, Any], ...] = ({"tool_choice": "none"}, {"tools": []})
    for fields in without:
        held = grammar_beside_tools(response_format=FORMAT, **fields)
        assert held is not None
        assert (held.kind, json.loads(held.text)) == ("json_schema", RECORD)


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("asked", [FORMAT, {"type": "json_object"}])
def test_a_format_is_about_text_of_which_a_call_has_none(choice: Any, asked: Any) -> None:
    alone = grammar_beside_tools(tool_choice=choice)
    assert alone is not None
    assert grammar_beside_tools(tool_choice=choice, response_format=asked) == alone


LOOSE = {"type": "json_schema", "json_schema": {"name": "r", "schema": RECORD, "strict": False}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"guided_regex": "a"}, "tools: given beside guided_regex; allowed: beside a JSON schema"),
        ({"guided_choice": ["a"]}, "tools: given beside guided_choice; allowed: beside a JSON sch"),
        ({"guided_grammar": "root ::= x"}, "tools: given beside guided_grammar; allowed: beside"),
        (
            {"response_format": LOOSE},
            "tools: given beside response_format.json_schema.schema whose strict is false; allowed",
        ),
        (
            {"response_format": FORMAT, "guided_regex": "a"},
            "guided_regex: given beside response_format.json_schema.schema; allowed: one of them",
        ),
        (
            {"guided_regex": "a", "tool_choice": "required"},
            "tools: given beside guided_regex; allowed: one of them",
        ),
        (
            {"response_format": FORMAT, "guided_regex": "a", "tool_choice": NAMED},
            "guided_regex: given beside response_format.json_schema.schema; allowed: one of them",
        ),
    ],
)
def test_a_format_that_contradicts_tools_is_refused_by_both_fields(
    fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        grammar_beside_tools(**fields)
    assert str(error.value).startswith(says)
    assert error.value.param == says.partition(":")[0]


AHEAD = {"type": "object", "properties": {"k": {"type": "string", "pattern": "^(?!a)"}}}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": s}}},
            f"response_format.json_schema.schema: {says}",
        )
        for s, says in (
            (AHEAD, "properties.k.pattern: look-around"),
            ({"type": "object", "properties": {"k": {"$ref": "#/gone"}}}, "properties.k.$ref: "),
            ({"type": "object", "properties": {"k": {"enum": ["x" * 70_000]}}}, "70"),
        )
    ]
    + [
        ({"guided_json": AHEAD}, "guided_json: properties.k.pattern: look-around"),
        ({"structured_outputs": {"json": AHEAD}}, "structured_outputs.json: properties.k.pattern"),
    ],
)
def test_a_format_that_cannot_be_used_beside_tools_is_refused_by_its_own_place(
    fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        grammar_beside_tools(**fields)
    assert str(error.value).startswith(place)
    assert error.value.param == place.partition(":")[0]


WRONG_TYPES = [
    ({"type": "object", "properties": []}, "properties", "an object"),
    ({"type": "object", "properties": "x", "required": ["a"]}, "properties", "an object"),
    ({"type": "object", "properties": {}, "required": "x"}, "required", "a list of names"),
    ({"type": "object", "properties": {}, "required": [1]}, "required", "a list of names"),
]


@pytest.mark.parametrize("form", [HERMES, QWEN3_CODER])
@pytest.mark.parametrize(("parameters", "place", "allowed"), WRONG_TYPES)
def test_keywords_of_a_wrong_type_are_named_or_refused(
    form: ToolFormat, parameters: dict[str, Any], place: str, allowed: str
) -> None:
    planned = plan(form, tools=[tool("f", parameters=parameters)], tool_choice="required")
    assert planned is not None
    assert planned.spec is not None
    assert planned.spec.left_out == (f"tools.f: {place}",)
    if place == "properties" and form is QWEN3_CODER:
        assert '"<parameter=" /[a-zA-Z0-9_.-]+/' in planned.spec.text
    with pytest.raises(InvalidRequestError, match=rf"tools\.f: {place}") as error:
        plan(form, tools=[tool("f", parameters=parameters, strict=True)])
    assert form is HERMES or allowed in str(error.value)


def test_a_reference_may_have_escapes() -> None:
    parameters = {
        "type": "object",
        "anyOf": [{"$ref": "#/$defs/a~1b"}],
        "$defs": {"a/b": {"type": "object", "properties": {"x": {"type": "string"}}}},
    }
    planned = plan(QWEN3_CODER, tools=[tool("f", parameters=parameters)], tool_choice="required")
    assert planned is not None
    assert planned.spec is not None
    assert "<parameter=x>" in planned.spec.text


ANY_OBJECT = {"type": "object", "additionalProperties": True}
CLOSED = {"additionalProperties": False}
DEFS: dict[str, Any] = {
    "$defs": {"a": {"type": "object", "properties": {"x": {}}}, "n": {"type": "null"}}
}
KEPT = {"$defs": {"a": {**DEFS["$defs"]["a"], **CLOSED}, "n": DEFS["$defs"]["n"]}}


@pytest.mark.parametrize(
    ("parameters", "held"),
    [
        ({}, ANY_OBJECT),
        ({"title": "f"}, ANY_OBJECT),
        ({"properties": {"x": {}}}, {"type": "object", "properties": {"x": {}}, **CLOSED}),
        ({"type": ["object", "null"]}, ANY_OBJECT),
        ({"anyOf": [{"type": "null"}, {"type": "object"}, {}]}, {"anyOf": [ANY_OBJECT] * 2}),
        ({"type": "object", "oneOf": [{"const": 1}, True]}, {"anyOf": [ANY_OBJECT]}),
        ({"enum": [1, {"x": 1}]}, {"enum": [{"x": 1}]}),
        ({"$ref": "#/$defs/a", **DEFS}, {**KEPT["$defs"]["a"], **KEPT}),
        (
            {"anyOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/a"}], **DEFS},
            {"anyOf": [{"$ref": "#/$defs/a"}], **KEPT},
        ),
    ],
)
def test_parameters_are_restricted_to_objects(
    parameters: dict[str, Any], held: dict[str, Any]
) -> None:
    _, call = held_to(tools=[tool("f", parameters=parameters)], tool_choice="required")
    (asked,) = re.findall(r"%json (\{.*\}) ", call)
    assert {**json.loads(asked), **held} == json.loads(asked)
    assert json.loads(asked).keys() == held.keys() | {"x-guidance"}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "array"}, '.type: "array" is not allowed; allowed: "object"'),
        ({"type": ["string", "null"]}, '.type: ["string", "null"] is not allowed; allowed: "o'),
        ({"type": "null", "anyOf": [{}]}, '.type: "null" is not allowed; allowed: "object"'),
        ({"enum": [1]}, ".enum: [1] is not allowed; allowed: one that is an object"),
        ({"const": 1}, ".const: 1 is not allowed; allowed: an object"),
        ({"anyOf": [{"type": "null"}]}, '.anyOf: [{"type": "null"}] is not allowed; allowed: one'),
        ({"allOf": [{"type": "null"}]}, '.allOf[0].type: "null" is not allowed; allowed: "object"'),
        ({"allOf": [{"$ref": "#/$defs/n"}], **DEFS}, '.allOf[0].$ref.type: "null" is not allowed'),
        ({"anyOf": [{"$ref": "#/$defs/n"}, False], **DEFS}, ".anyOf: ["),
        ({"$ref": "#/$defs/f", "$defs": {"f": False}}, '.$ref: "#/$defs/f" is not allowed'),
        ({"$ref": "#/$defs/n", **DEFS}, '.type: "null" is not allowed; allowed: "object"'),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_parameters_that_can_be_no_object_are_refused(
    parameters: dict[str, Any], words: str, choice: str
) -> None:
    with pytest.raises(InvalidRequestError) as error:
        plan(tools=[tool("f", parameters=parameters)], tool_choice=choice)
    assert str(error.value).startswith(f"tools.f: parameters{words}")


COMPOSED: dict[str, Any] = {
    "$defs": {
        "a": {"allOf": [{"$ref": "#/$defs/b"}, {"properties": {"y": {"type": "integer"}}}]},
        "b": {"properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "c": {"$ref": "#/$defs/a"},
        "any": True,
    }
}


@pytest.mark.parametrize(
    ("key", "name", "strict"),
    matrix(["allOf", "anyOf", "oneOf"], "abc", [False, True], others=pytest.mark.full),
)
def test_references_may_lead_to_objects_that_name_no_type(
    key: str, name: str, strict: bool
) -> None:
    parameters = {key: [{"$ref": f"#/$defs/{name}"}], **COMPOSED}
    tools = [tool("f", parameters=parameters, strict=strict)]
    for form in FORMATS:
        planned = plan(form, tools=tools, tool_choice="required")
        assert planned is not None
        assert planned.spec is not None
        assert planned.left_out == []
        assert planned.spec.left_out == ()
        refuse_unusable("lark", planned.spec.text)
    matcher = matcher_of("lark", "\n".join(held_to(tools=tools, tool_choice="required")), BYTES)
    values = ['{"x": 1}', '{"x": "a"}', "{}", "null", "1", '{"x": 2, "z": 1}']
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    assert [value for value in values if accepts(matcher, (call % value).encode())] == values[:1]


UNREAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "Object"}, '.type: "Object" is not allowed; allowed: "object"'),
    ({"type": None}, '.type: null is not allowed; allowed: "object"'),
    ({"type": {"a": 1}}, '.type: {"a": 1} is not allowed; allowed: "object"'),
    ({"$ref": "#"}, '.$ref: "#" is not allowed; allowed: a reference to a schema of an object'),
    ({"$ref": "#/$defs/gone"}, '.$ref: "#/$defs/gone" is not allowed; allowed: a reference to'),
    ({"anyOf": [{"$ref": "#/$defs/gone"}]}, '.anyOf[0].$ref: "#/$defs/gone" is not allowed'),
    ({"allOf": [{"type": "Object"}]}, '.allOf[0].type: "Object" is not allowed; allowed: "object"'),
    ({"allOf": {"type": "object"}}, '.allOf: {"type": "object"} is not allowed; allowed: a list'),
    ({"oneOf": [3]}, ".oneOf[0]: 3 is not allowed; allowed: a schema of an object"),
    (
        {"allOf": [{"$ref": "#/$defs/r"}], "$defs": {"r": {"$ref": "#/$defs/r"}}},
        '.allOf[0].$ref: "#/$defs/r" is not allowed; allowed: a reference',
    ),
]


@pytest.mark.parametrize(("parameters", "words"), UNREAD, ids=str)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_parameters_that_cannot_be_read_are_any_object_or_refused_where_strict(
    parameters: dict[str, Any], words: str, choice: str
) -> None:
    planned = plan(tools=[tool("f", parameters=parameters), G], tool_choice=choice)
    assert planned is not None
    assert planned.left_out == ["tools.f"]
    assert planned.reading.schemas["f"] == ANY_OBJECT
    with pytest.raises(InvalidRequestError) as error:
        plan(tools=[tool("f", parameters=parameters, strict=True)], tool_choice=choice)
    assert str(error.value).startswith(f"tools.f: parameters{words}")
    assert error.value.param == "tools.f"


def test_earlier_calls_are_shown_with_their_arguments_as_objects() -> None:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "two"},
    ]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    _, assistant, result = [
        m.for_template() for m in parse_request(ChatRequest, body, strict=False).request.messages
    ]
    function = {"name": "f", "arguments": {"x": 1}}
    assert assistant["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    assert result == {"role": "tool", "content": "two", "tool_call_id": "c"}
