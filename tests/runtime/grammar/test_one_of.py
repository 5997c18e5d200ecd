"""`oneOf` as clients send it: taken as `anyOf`, in responses and in calls."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, ConfigDict, Field
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.server.tools.formats import HERMES
from sluice_runtime.server.tools.object_schema import object_schema

from tests.runtime.grammar.drawing import answer, matcher_of, schema_matcher


class Cat(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)
    kind: Literal["dog"] = "dog"
    good: bool


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


A = {"a": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}}
EXCLUSIVE: list[dict[str, Any]] = [
    to_strict_json_schema(Home),
    Home.model_json_schema(mode="serialization"),
    {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": A},
    {"oneOf": [A["a"], {"type": "array", "items": {"type": "null"}}]},
    {"type": "array", "items": {"oneOf": [{"const": 1}, {"oneOf": [{"type": "null"}, A["a"]]}]}},
    {"$ref": "#/$defs/b", "$defs": {"b": {"oneOf": [{"enum": ["oneOf"]}, {"type": "null"}]}}},
]
"""Schemas of which no value fits two alternatives."""


def drawn(schema: object, times: int = 8) -> list[Any]:
    grammar = schema_matcher(schema)
    said = [answer(grammar, random.Random(seed)) for seed in range(times)]
    return [json.loads(text) for text in said if text is not None]


@pytest.mark.parametrize("schema", EXCLUSIVE)
def test_answers_are_one_of_the_alternatives(schema: dict[str, Any]) -> None:
    values = drawn(schema)
    assert values
    for value in values:
        jsonschema.Draft202012Validator(schema).validate(value)


def test_answers_are_of_the_union_that_pydantic_wrote() -> None:
    pets = [Home.model_validate(value).pet for value in drawn(to_strict_json_schema(Home), 20)]
    assert {type(pet).__name__ for pet in pets} == {"Cat", "Dog"}


def test_an_answer_may_fit_several_alternatives() -> None:
    values = drawn({"oneOf": [{"type": "integer"}, {"type": "number", "maximum": 5}]}, 20)
    assert values
    assert all(isinstance(value, int) or value <= 5 for value in values)


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"pet": {"oneOf": [{"type": "integer"}, {}]}}},
        {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": A},
        Home.model_json_schema(),
    ],
)
def test_calls_are_held_to_it(parameters: dict[str, Any]) -> None:
    schema = usable_schema(object_schema(parameters, "parameters"))
    form = HERMES.grammar.calls({"f": schema}, {}, at_most_one=True)
    matcher_of("lark", form.text)


def test_it_is_written_otherwise_only_where_it_is_a_keyword() -> None:
    value = {"oneOf": [1]}
    schema: dict[str, Any] = {
        "oneOf": [{"type": "object", "properties": {"oneOf": {"const": value}}}, {"enum": [value]}],
        "$defs": {"oneOf": {"oneOf": [{"type": "null"}]}},
        "default": value,
        "examples": [value],
        "discriminator": {"propertyName": "oneOf", "mapping": {"oneOf": "#/$defs/oneOf"}},
    }
    first, second = schema["oneOf"]
    assert usable_schema(schema) == {
        "anyOf": [first | {"additionalProperties": False}, second],
        "$defs": {"oneOf": {"anyOf": [{"type": "null"}]}},
    }


def test_beside_any_of_a_value_fits_both() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "string"}], "anyOf": [{"minimum": 3}]}
    values = drawn({**schema, "type": ["integer", "null"]})
    assert values
    assert all(isinstance(value, int) and value >= 3 for value in values)
