"""What the arguments of calls are held to: strict schemas as a whole, others as far as it goes."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.tools.calls import whole_calls
from sluice_runtime.server.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
)
from sluice_runtime.server.tools.plan import ToolPlan, plan_tools
from sluice_runtime.server.tools.xml_values import kinds_of

from tests.examples import examples
from tests.pairwise import matrix
from tests.runtime.grammar.drawing import BYTES, accepts, matcher_of
from tests.runtime.grammar.schema_values import value_for

VALIDATOR = jsonschema.Draft202012Validator
FORMAT_CHECKER = VALIDATOR.FORMAT_CHECKER
FORMS = {f"{form.name}-{type(form.grammar).__name__}": form for form in FORMATS}
EVERY = pytest.mark.parametrize("form", FORMATS, ids=FORMS)
EMAIL = {
    "type": "string",
    "format": "email",
    "pattern": r"^(?!\.)(?!.*\.\.)([a-z0-9_'+\-\.]*)[a-z0-9_+-]@([a-z0-9\-]*\.)+[a-z]{2,}$",
}
"""As zod writes it."""
MAIL = {
    "type": "object",
    "properties": {
        "to": EMAIL,
        "cc": {"type": "array", "items": EMAIL},
        "subject": {"type": "string", "pattern": r"\S", "maxLength": 20},
        "by": {"$ref": "#/$defs/by"},
    },
    "required": ["to"],
    "additionalProperties": False,
    "$defs": {"by": {"type": "object", "properties": {"m": EMAIL}}},
}
BLOCKED = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
TASKS = {
    "type": "object",
    "properties": {
        "blockedBy": BLOCKED,
        "other": {"$ref": "https://example.org/schema"},
        "never": {"type": "string", "minLength": 3, "maxLength": 2},
        "either": {"anyOf": [{"type": "integer", "not": {"const": 1}}, {"type": "null"}]},
    },
    "required": ["never"],
    "if": {"required": ["either"]},
    "then": {"required": ["blockedBy"]},
}
LEFT_OUT = [
    "tools.send: properties.to.pattern",
    "tools.send: properties.cc.items.pattern",
    "tools.send: $defs.by.properties.m.pattern",
    "tools.todo_write: if",
    "tools.todo_write: then",
    "tools.todo_write: properties.blockedBy.uniqueItems",
    "tools.todo_write: properties.either.anyOf[0].not",
    "tools.todo_write: properties.other.$ref",
    "tools.todo_write: properties.never.maxLength",
]


def tool(name: str, parameters: Any, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **function}}


BOTH = [tool("send", MAIL), tool("todo_write", TASKS)]
STRICT = tool("now", {"type": "object", "properties": {}}, strict=True)
RECORD = {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "r", "schema": RECORD, "strict": True}}
NAMED = {"type": "function", "function": {"name": "send"}}


def planned(form: ToolFormat, *, strict: bool = False, **fields: Any) -> ToolPlan:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = parse_request(ChatRequest, json.dumps(body).encode(), strict=False).request
    plan = plan_tools(request, form, dict[str, int]().get, strict=strict)
    assert plan is not None
    return plan


def left_out(form: ToolFormat, **fields: Any) -> list[str]:
    spec = planned(form, **fields).spec
    assert spec is not None
    matcher_of(spec.kind, spec.text, BYTES)
    return list(spec.left_out)


def refusal(form: ToolFormat, **fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as error:
        planned(form, **fields)
    return error.value


HOLDING: dict[str, dict[str, Any]] = {
    "required": {"tool_choice": "required"},
    "single": {"parallel_tool_calls": False},
    "format": {"response_format": FORMAT},
    "strict": {"tools": [STRICT, *BOTH]},
}


@pytest.mark.parametrize(
    ("name", "holding"), matrix(FORMS, HOLDING, others=pytest.mark.full, together=1)
)
def test_what_no_grammar_enforces_is_left_out_and_named(name: str, holding: str) -> None:
    assert left_out(FORMS[name], **{"tools": BOTH, **HOLDING[holding]}) == LEFT_OUT


def test_a_tool_that_is_not_offered_is_not_named() -> None:
    assert left_out(HERMES, tools=BOTH, tool_choice=NAMED) == LEFT_OUT[:3]
    assert planned(HERMES, tools=BOTH).spec is None


STRICTLY_REFUSED = [
    (MAIL, "properties.to.pattern: look-around, including look-ahead and look-behind, is not supp"),
    ({"type": "object", "properties": {"a": BLOCKED}}, "properties.a.uniqueItems: true is not imp"),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "properties.a.$ref: Pointer "),
]


@pytest.mark.parametrize(
    ("name", "refused"), matrix(FORMS, STRICTLY_REFUSED, others=pytest.mark.full, together=1)
)
def test_a_strict_tool_is_refused_by_name_and_place(name: str, refused: tuple[Any, str]) -> None:
    parameters, says = refused
    error = refusal(FORMS[name], tools=[*BOTH, tool("f", parameters, strict=True)])
    assert error.param == "tools.f"
    assert str(error).startswith(f"tools.f: {says}")


@pytest.mark.parametrize("offered", BOTH)
def test_strict_requests_refuse_what_would_be_left_out(offered: dict[str, Any]) -> None:
    error = refusal(HERMES, tools=[offered], tool_choice="required", strict=True)
    assert error.param == f"tools.{offered['function']['name']}"
    assert planned(HERMES, tools=[offered], strict=True).spec is None  # `auto` holds to none


CALLS = {
    HERMES: '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>',
    LLAMA3: '{"name": "%s", "parameters": %s}',
    MISTRAL: '[TOOL_CALLS][{"name": "%s", "arguments": %s}]',
    MISTRAL_NAMED: "[TOOL_CALLS]%s[ARGS]%s",
}


def call_of(form: ToolFormat, arguments: dict[str, Any], name: str = "f") -> bytes:
    """A call as the model writes it."""
    if form is not QWEN3_CODER:
        return (CALLS[form] % (name, json.dumps(arguments, ensure_ascii=False))).encode()
    values = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in arguments.items()
    }
    parts = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>".encode()


def calls_matcher(form: ToolFormat, parameters: Any) -> LLMatcher:
    spec = planned(form, tools=[tool("f", parameters)], tool_choice="required").spec
    assert spec is not None
    assert spec.left_out == ()
    return matcher_of(spec.kind, spec.text, BYTES)


@EVERY
def test_the_rest_of_a_schema_still_constrains(form: ToolFormat) -> None:
    spec = planned(form, tools=[tool("f", MAIL)], tool_choice="required").spec
    assert spec is not None
    matcher = matcher_of(spec.kind, spec.text, BYTES)
    assert accepts(matcher, call_of(form, {"to": "a@b.cd", "subject": "so"}))
    for wrong in ({"subject": "so"}, {"to": "no mail"}, {"to": "a@b.cd", "subject": "  "}, {}):
        assert not accepts(matcher, call_of(form, wrong))


BASE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
ARGUMENTS: list[tuple[Any, list[dict[str, Any]]]] = [
    ({"declarationKey": {"pattern": r"\S"}}, [{"declarationKey": "daily report"}]),
    ({"s": {"pattern": "^https?://"}}, [{"s": "https://example.org/a"}, {"s": "ftp://a"}]),
    ({"s": {"pattern": "^a|b$"}}, [{"s": "xb"}, {"s": "ax"}, {"s": "xax"}, {"s": 'a"\n'}]),
    (
        {"s": {"pattern": "b", "minLength": 2, "maxLength": 3}},
        [{"s": "ab"}, {"s": "b"}, {"s": "bbbb"}],
    ),
    ({"s": {"minLength": 2}}, [{"s": "a"}, {"s": "a\nb"}, {"s": ""}]),
    ({"s": {"maxLength": 2}}, [{"s": "abc"}, {"s": "ab"}, {"s": ""}]),
    ({"s": {"format": "date"}}, [{"s": "2024-02-03"}, {"s": "today"}]),
    ({"s": {"format": "uuid"}}, [{"s": "123e4567-e89b-12d3-a456-426614174000"}, {"s": "1"}]),
    ({"s": {"enum": ["ab", "b", ""], "pattern": "b"}}, [{"s": "ab"}, {"s": ""}, {"s": "c"}]),
    ({"s": {"const": "a b"}}, [{"s": "a b"}, {"s": "a"}]),
    ({"s": {"type": ["string", "null"], "pattern": "b"}}, [{"s": "ab"}, {"s": None}, {"s": "a"}]),
    (
        {"s": {"type": ["string", "null"], "enum": ["a", None]}},
        [{"s": "a"}, {"s": None}, {"s": "b"}],
    ),
    (
        {"s": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}], "type": None}},
        [{"s": "ab"}, {"s": None}, {"s": "a"}],
    ),
    (
        {"s": {"allOf": [{"pattern": "a"}, {"pattern": "b"}]}},
        [{"s": "xba"}, {"s": "a"}, {"s": "b"}],
    ),
    (
        {"l": {"type": "array", "items": {"pattern": "b", "type": "string"}}},
        [{"l": ["ab"]}, {"l": ["a"]}],
    ),
    (
        {
            "type": "object",
            "allOf": [BASE, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
        },
        [{"a": "x", "b": 2}, {"a": "x"}, {"b": 2}, {"a": "x", "b": "y"}],
    ),
    (
        {"$ref": "#/$defs/base", "properties": {"b": {"type": "integer"}}, "$defs": {"base": BASE}},
        [{"a": "x", "b": 2}, {"a": "x"}, {"b": 2}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": "x"}, {"b": "x"}, {"a": "x", "b": "y"}, {}],
    ),
]


def parameters_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object; others are those of its properties."""
    if schema.keys() & {"properties", "allOf", "$ref"}:
        return schema
    properties = {
        name: {key: value for key, value in {"type": "string", **part}.items() if value is not None}
        for name, part in schema.items()
    }
    return {"type": "object", "properties": properties, "required": [*properties]}


READ_BACK = [
    (parameters, value)
    for parameters, value in [
        ({"properties": {"a": {"pattern": "1"}}}, {"a": "12"}),
        ({"$ref": "#/$defs/b", "$defs": {"b": BASE}, "required": ["a"]}, {"a": "12"}),
        ({"allOf": [BASE, {"properties": {"b": {}}}]}, {"a": "true", "b": [1]}),
        ({"additionalProperties": {"type": "string"}}, {"x": "12"}),
        (
            {"properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": {"type": "string"}}},
            {"a": "1"},
        ),
        (
            {"anyOf": [BASE, {"properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
            {"a": 5},
        ),
    ]
]


@pytest.mark.parametrize(("parameters", "value"), READ_BACK, ids=str)
def test_what_the_grammar_writes_between_tags_is_read_with_its_type(
    parameters: dict[str, Any], value: dict[str, Any]
) -> None:
    """Text where the reader knows a string, JSON elsewhere."""
    offered = tool("f", {"type": "object", **parameters})
    plan = planned(QWEN3_CODER, tools=[offered], tool_choice="required")
    assert plan.spec is not None
    matcher = matcher_of(plan.spec.kind, plan.spec.text, BYTES)
    texts = plan.reading.schemas["f"]["properties"]
    spelled = {
        name: part if name in texts else _Json(json.dumps(part)) for name, part in value.items()
    }
    call = call_of(QWEN3_CODER, spelled)
    assert accepts(matcher, call)
    (made,) = whole_calls(plan.reading.parser("a").push(call.decode()).calls)
    assert json.loads(made.arguments) == value


class _Json(str):
    """A value as it is written."""


@pytest.mark.parametrize(
    ("name", "arguments"),
    matrix(FORMS, ARGUMENTS, others=pytest.mark.full, together=1),
    ids=str,
)
def test_arguments_are_held_to_what_the_schema_says(name: str, arguments: Any) -> None:
    form, (schema, values) = FORMS[name], arguments
    parameters = parameters_of(schema)
    matcher, validator = (
        calls_matcher(form, parameters),
        VALIDATOR(parameters, format_checker=FORMAT_CHECKER),
    )
    for value in values:
        assert accepts(matcher, call_of(form, value)) is validator.is_valid(value), value


STRINGS = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", ["string", "null"]])},
    optional={
        "pattern": st.sampled_from([r"\S", "^a|b$", "@", "^[a-z ]+$", "^.{1,3}$", r"\d"]),
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(1, 4),
        "enum": st.sampled_from([["a", "ab", "12"], ["xz"], ["a b", "é"]]),
    },
)
VALUES = st.one_of(
    STRINGS,
    st.lists(STRINGS, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
    st.lists(STRINGS, min_size=1, max_size=2).map(lambda p: {"type": "string", "allOf": p}),
    st.tuples(STRINGS, STRINGS).map(lambda two: {**two[0], "anyOf": [two[1]]}),
    st.sampled_from([{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]),
)


@examples(40)
@given(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1, max_size=3), st.randoms())
def test_any_strings_between_tags_are_held_to_their_limits(
    properties: dict[str, Any], draw: random.Random
) -> None:
    parameters = {"type": "object", "properties": properties, "required": [*properties][:1]}
    spec = planned(QWEN3_CODER, tools=[tool("f", parameters)], tool_choice="required").spec
    assert spec is not None
    if spec.left_out:  # a required string that no value fits
        return
    matcher = matcher_of(spec.kind, spec.text, BYTES)
    for _ in range(8):
        names = [name for name in properties if draw.random() < 0.8]
        arguments = {name: value_for(properties[name], draw) for name in names}
        if any(value in (None, "null") for value in arguments.values()):
            continue  # text that is either
        kinds = {name: kinds_of(part) for name, part in properties.items()}
        if any(("string" in kinds[k]) != isinstance(v, str) for k, v in arguments.items()):
            continue  # which is written as another type
        fits = VALIDATOR(parameters, format_checker=FORMAT_CHECKER).is_valid(arguments)
        assert accepts(matcher, call_of(QWEN3_CODER, arguments)) is fits, arguments


def test_what_text_between_tags_cannot_be_held_to_is_named() -> None:
    limits = {
        "v6": {"type": "string", "format": "ipv6"},
        "within": {"type": "array", "items": {"type": "string", "format": "ipv6"}},
    }
    parameters = {"type": "object", "properties": limits, "minProperties": 1}
    named = ["tools.f: minProperties", "tools.f: properties.v6.format"]
    assert left_out(QWEN3_CODER, tools=[tool("f", parameters)], tool_choice="required") == named
    assert left_out(HERMES, tools=[tool("f", parameters)], tool_choice="required") == []
    strict = refusal(
        QWEN3_CODER, tools=[tool("f", {**parameters, "minProperties": 0}, strict=True)]
    )
    says = 'tools.f: properties.v6.format: "ipv6" is not implemented between tags; allowed: date, '
    assert str(strict).startswith(says)


@EVERY
def test_a_schema_beyond_the_limits_leaves_any_object(form: ToolFormat) -> None:
    long = {"type": "object", "properties": {f"p{i}": {"enum": ["x" * 70]} for i in range(900)}}
    tools = [tool("long", long), tool("g", RECORD)]
    assert left_out(form, tools=tools, tool_choice="required") == ["tools.long"]


def test_references_that_lead_nowhere_leave_any_object() -> None:
    lost = {"type": "object", "anyOf": [{"$ref": "#"}]}
    for form in FORMATS:
        named = left_out(form, tools=[tool("f", lost)], tool_choice="required")
        assert [place.partition(":")[0] for place in named] == ["tools.f"]
        assert refusal(form, tools=[tool("f", lost, strict=True)]).param == "tools.f"
