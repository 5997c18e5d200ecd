"""Schemas in which each definition names the next one twice: written out they have 2^32 parts, so
that a test which ends shows that no walk doubles."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sluice_runtime.errors import GrammarError, InvalidRequestError
from sluice_runtime.grammar import constraint
from sluice_runtime.grammar.constraint import CheckBudget, refuse_unusable
from sluice_runtime.grammar.json_schema import best_effort_schema, usable_schema
from sluice_runtime.grammar.schema_keywords import Steps
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.structured import AnswerGrammar, grammar_of
from sluice_runtime.server.tools.formats import FORMATS, QWEN3_CODER, ToolFormat
from sluice_runtime.server.tools.plan import plan_tools
from sluice_runtime.server.tools.written_out import Work, WrittenOut
from sluice_runtime.server.tools.xml_values import kinds_of

from tests.pairwise import matrix

LEVELS = 32
Schema = dict[str, Any]
Step = Callable[[Schema, int], Schema]


def mixed(following: Schema, level: int) -> Schema:
    kinds = [*STEPS.values()][:-1]
    return kinds[level % len(kinds)](following, level)


STEPS: dict[str, Step] = {
    "anyOf": lambda d, _: {"anyOf": [d, {**d}]},
    "oneOf": lambda d, _: {"oneOf": [d, {**d}]},
    "allOf": lambda d, _: {"allOf": [d, {**d}]},
    "anyOf and oneOf": lambda d, _: {"anyOf": [d], "oneOf": [{**d}]},
    "typed anyOf": lambda d, _: {"type": "string", "anyOf": [d, {**d}]},
    "$ref and allOf": lambda d, _: {**d, "allOf": [{**d}]},
    "properties": lambda d, _: {"type": "object", "properties": {"p": d, "q": {**d}}},
    "items": lambda d, _: {"type": "array", "prefixItems": [d], "items": {**d}},
    "rest": lambda d, _: {"properties": {"p": d}, "additionalProperties": {**d}},
    "objects": lambda d, i: {
        "anyOf": [
            {"type": "object", "properties": {f"p{i}": d}},
            {"type": "object", "properties": {f"q{i}": {**d}}},
        ]
    },
    "mixed": mixed,
}
ENDS: dict[str, Any] = {
    "string": {"type": "string"},
    "nothing": {"anyOf": []},
    "ahead": {"type": "string", "pattern": "^(?!a)"},
    "format": {"type": "string", "format": "ipv6"},
    "object": {"type": "object", "properties": {"z": {"type": "string"}}},
}
FIRST = {"$ref": "#/$defs/d0"}
TOPS: dict[str, Schema] = {
    "property": {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, FIRST]}, "b": FIRST},
    },
    "whole": FIRST,
    "both": {"type": "object", "allOf": [FIRST, {**FIRST}]},
}


def ladder(step: str, end: str, top: str, levels: int = LEVELS) -> Schema:
    definitions = {
        f"d{level}": STEPS[step]({"$ref": f"#/$defs/d{level + 1}"}, level)
        for level in range(levels)
    }
    return {**TOPS[top], "$defs": {**definitions, f"d{levels}": ENDS[end]}}


def grammar(form: ToolFormat, schema: Schema, *, strict: bool, **fields: Any) -> AnswerGrammar:
    function = {"name": "f", "parameters": schema, "strict": strict}
    tools = {"tools": [{"type": "function", "function": function}], **fields}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **tools}
    request = parse_request(ChatRequest, json.dumps(body).encode(), strict=False).request
    plan = plan_tools(request, form, dict[str, int]().get)
    assert plan is not None
    result = grammar_of(request, [1], plan.spec)
    assert result is not None
    return result


def outcome(make: Callable[[], AnswerGrammar | None]) -> tuple[Sequence[str], str]:
    """What a grammar does not enforce, or why there is none."""
    try:
        result = make()
    except InvalidRequestError as error:
        return (), str(error)
    assert result is not None
    return result.left_out, ""


CHOICES: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"parallel_tool_calls": False},
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
]


@pytest.mark.parametrize(
    ("step", "end", "top", "strict"),
    matrix(STEPS, ENDS, TOPS, [False, True], others=pytest.mark.full, together=1),
)
def test_a_call_is_held_to_it_or_the_tool_is_named(
    step: str, end: str, top: str, strict: bool
) -> None:
    """Each case in one format and with one choice, in turn."""
    case = [*STEPS].index(step) + [*ENDS].index(end) + [*TOPS].index(top)
    form, fields = FORMATS[case % len(FORMATS)], CHOICES[case % len(CHOICES)]
    schema = ladder(step, end, top)
    places, refusal = outcome(lambda: grammar(form, schema, strict=strict, **fields))
    assert all(place.startswith("tools.f") for place in places)
    if strict:
        assert not places
        assert refusal.startswith("tools.f: " if refusal else "")
    else:
        assert not refusal or "parameters." in refusal  # no object fits


@pytest.mark.parametrize(("step", "end"), matrix(STEPS, ENDS, others=pytest.mark.full, together=1))
def test_tags_are_written_for_it(step: str, end: str) -> None:
    result = grammar(QWEN3_CODER, ladder(step, end, "property"), strict=False, **CHOICES[0])
    assert "<function=f>" in result.grammar.text


@pytest.mark.parametrize(
    ("step", "end", "strict"),
    matrix(STEPS, ENDS, [False, True], others=pytest.mark.full, together=1),
)
def test_an_answer_is_held_to_it_or_the_format_is_named(step: str, end: str, strict: bool) -> None:
    schema = {"name": "s", "schema": ladder(step, end, "property"), "strict": strict}
    wanted = {"type": "json_schema", "json_schema": schema}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    text = json.dumps({**body, "response_format": wanted}).encode()
    request = parse_request(ChatRequest, text, strict=False).request
    place = "response_format.json_schema.schema"
    places, refusal = outcome(lambda: grammar_of(request, [1]))
    assert all(name.startswith(place) for name in places)
    assert refusal.startswith(place if refusal else "")
    assert not (places if strict else refusal)


def test_a_reference_is_written_out_once() -> None:
    schema = ladder("anyOf", "string", "property")
    written_out = WrittenOut(schema, Work())
    (arguments,) = written_out.arguments()
    assert written_out.strings(arguments.schemas()["a"]) == [()]
    assert kinds_of(schema["properties"]["a"], schema) == {"string"}


def test_arguments_that_are_referred_to_twice_are_written_out_once() -> None:
    schema = ladder("$ref and allOf", "object", "whole")
    (arguments,) = WrittenOut(schema, Work()).arguments()
    assert arguments.schemas().keys() == {"z"}


def test_strings_that_hold_together_are_written_once() -> None:
    written_out = WrittenOut(ladder("allOf", "ahead", "property"), Work())
    assert [*map(len, written_out.strings(FIRST))] == [1]


CHAIN: Schema = {
    **TOPS["property"],
    "$defs": {f"d{n}": {"type": "string", "$ref": f"#/$defs/d{n + 1}"} for n in range(2000)},
}
FAN: Schema = {
    "type": "object",
    "properties": {f"p{n}": {"type": "string", "$ref": "#/$defs/d"} for n in range(300)},
    "$defs": {"d": {"allOf": [{"minLength": n} for n in range(400)]}},
}


def test_following_references_takes_a_bounded_number_of_steps() -> None:
    with pytest.raises(GrammarError, match="too large; allowed: 30000 steps"):
        usable_schema(FAN)
    steps = Steps()
    with pytest.raises(GrammarError, match="too large"):
        best_effort_schema(FAN, steps=steps)
    with pytest.raises(GrammarError, match="too large"):  # which are those of the request
        best_effort_schema({"type": "string"}, steps=steps)


@pytest.mark.parametrize("schema", [CHAIN, FAN], ids=["chain", "fan"])
def test_schemas_that_take_more_steps_are_any_object(schema: Schema) -> None:
    assert grammar(QWEN3_CODER, schema, strict=False, **CHOICES[0]).left_out == ("tools.f",)


def test_types_are_looked_for_in_a_long_chain() -> None:
    assert kinds_of(FIRST, CHAIN) == {"string"}


def test_checks_end_where_the_librarys_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = list[str]()

    def invalid(grammar: str) -> str:
        checks.append(grammar)
        return "no"

    monkeypatch.setattr(constraint, "_invalid", invalid)
    ticks = iter(range(1000))
    budget = CheckBudget(lambda: next(ticks) * constraint.MAX_CHECK_SECONDS / 3)
    reasons = [budget.invalid_grammar(f"start: {number}") for number in range(6)]
    assert reasons == ["no"] * 3 + ["it was not checked"] * 3
    assert len(checks) == 3


def test_a_check_that_is_made_twice_is_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "MAX_CHECKED_CHARACTERS", 1_100)
    budget = CheckBudget()
    assert {budget.invalid_grammar('start: "a"') for _ in range(5)} == {""}
    assert budget.invalid_grammar('start: "b"') == "it was not checked"


def test_schemas_that_the_library_writes_out_together_are_bounded() -> None:
    schema = usable_schema(ladder("anyOf and oneOf", "format", "property", levels=6))
    refuse_unusable("json_schema", json.dumps(schema))
    with pytest.raises(GrammarError, match="leads to too many schemas of one value; allowed: at"):
        usable_schema(ladder("anyOf and oneOf", "format", "property", levels=9))
