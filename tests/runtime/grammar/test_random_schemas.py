"""Schemas at random: what is not refused is kept by every answer."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from sluice_runtime.errors import GrammarError

from tests.examples import examples
from tests.runtime.grammar.drawing import BYTES, accepts, answer, schema_matcher
from tests.runtime.grammar.schema_values import allows, tried

EXACT = jsonschema.Draft202012Validator
VALIDATOR = jsonschema.validators.extend(EXACT, {"oneOf": EXACT.VALIDATORS["anyOf"]})
"""Takes `oneOf` as answers are held to it: as `anyOf`."""

SMALL = st.integers(0, 4)
NAME = st.sampled_from(["a", "b", "c d", 'e"f'])


def some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def of(kind: str, **keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return some(**keywords).map(lambda given: {"type": kind, **given})


STRING = of(
    "string",
    minLength=SMALL,
    maxLength=SMALL,
    pattern=st.sampled_from(
        ["^a+$", "^[0-9]{2}$", "^(x|y)z$", "^.{1,3}$", "b", "^[^a]$", r"\S", "^a|b$", "@"]
    ),
    format=st.sampled_from(["uuid", "email", "unheard-of"]),
)
NUMBER_BOUNDS = {
    "minimum": st.integers(-9, 9),
    "maximum": st.integers(-9, 9),
    "exclusiveMinimum": st.integers(-9, 9),
    "exclusiveMaximum": st.integers(-9, 9),
}
UNTYPED = some(
    **NUMBER_BOUNDS,
    minLength=SMALL,
    maxLength=SMALL,
    minItems=SMALL,
    maxItems=SMALL,
    minProperties=st.integers(0, 1),
    maxProperties=SMALL,
    required=st.lists(NAME, unique=True, max_size=2),
).filter(lambda schema: len(schema) < 4)
LEAF = st.one_of(
    STRING,
    UNTYPED,
    st.sampled_from([{"pattern": "^a+$"}, {"propertyNames": {"pattern": "^b$"}}]),
    of("array", minItems=SMALL, maxItems=SMALL),
    of("integer", **NUMBER_BOUNDS),
    of("integer", multipleOf=st.sampled_from([2, 3, 5.0, 0.5, 0.01]), **NUMBER_BOUNDS),
    of("number", multipleOf=st.integers(2, 5), **NUMBER_BOUNDS),
    of("number", **NUMBER_BOUNDS),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, {"$ref": "#/$defs/d"}]),
    st.lists(st.sampled_from([1, "a", None, True, 2.5, 'x"\n', [1], {"b": 2}]), min_size=1).map(
        lambda values: {"enum": values}
    ),
)


def nested(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        of("array", items=part, minItems=SMALL, maxItems=SMALL),
        of("array", prefixItems=st.lists(part, min_size=1, max_size=2), items=part),
        of(
            "object",
            properties=st.dictionaries(NAME, part, max_size=3),
            required=st.lists(NAME, unique=True, max_size=2),
            additionalProperties=st.one_of(st.booleans(), part),
            minProperties=SMALL,
            maxProperties=SMALL,
        ),
        of("object", patternProperties=st.just({"^p": {"type": "null"}})),
        st.tuples(st.sampled_from(["anyOf", "oneOf"]), st.lists(part, min_size=1, max_size=3)).map(
            lambda given: {given[0]: given[1]}
        ),
        some(uniqueItems=st.just(True), minLength=SMALL).map(lambda s: {"enum": [1], **s}),
    )


SCHEMA = st.recursive(LEAF, nested, max_leaves=4)

NAMES = st.lists(NAME, unique=True, max_size=2)
TEXT = STRING.map(lambda schema: {key: schema[key] for key in schema if key != "format"})
"""The validator takes formats as annotations."""
TYPED = st.one_of(
    TEXT,
    of("integer", multipleOf=st.sampled_from([2, 3, 0.5]), **NUMBER_BOUNDS),
    of("number", **NUMBER_BOUNDS),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}, {}]),
    st.sampled_from([{"$ref": "#/$defs/d"}, {"$ref": "#/$defs/o"}, {"const": {"a": 1}}]),
    st.sampled_from([{"enum": [1, "ab", None, 2.5]}, {"enum": ["a", "xz"], "pattern": "z"}]),
)
"""Schemas that say of which type their values are: others are held to the types that
its keywords are about."""


def objects(part: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = [{"pattern": "^[a-c]"}, {"enum": ["a", "b", "z"]}, {"minLength": 2}, {"const": "a"}]
    return of(
        "object",
        properties=st.dictionaries(NAME, part, max_size=2),
        required=NAMES,
        additionalProperties=st.one_of(st.booleans(), part),
        minProperties=st.integers(0, 2),
        maxProperties=SMALL,
        patternProperties=st.dictionaries(st.sampled_from(["^p", "x", "z$"]), part, max_size=1),
        propertyNames=st.sampled_from(names),
        unevaluatedProperties=st.just(False),
    ).map(lambda schema: {key: schema[key] for key in [*schema][:4]})


def beside(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A schema with others about its value."""
    base = st.one_of(objects(part), TEXT, of("number", **NUMBER_BOUNDS))
    member = st.one_of(
        part,
        NAMES.map(lambda names: {"required": names}),
        st.sampled_from([{"$ref": "#/$defs/o"}, {"$ref": "#/x/y"}, {"minLength": 2}]),
        some(**NUMBER_BOUNDS),
    )
    members = st.lists(member, min_size=1, max_size=3)
    together = some(allOf=members, anyOf=members, oneOf=members).map(
        lambda schema: {key: schema[key] for key in [*schema][:2]}
    )
    references = st.sampled_from(["#/$defs/o", "#/$defs/p", "#/x/y"]).map(lambda to: {"$ref": to})
    return st.tuples(base, st.one_of(together, references)).map(lambda two: two[0] | two[1])


def composed(part: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        objects(part),
        of("array", items=part, prefixItems=st.lists(part, min_size=1, max_size=2), maxItems=SMALL),
        beside(part),
    )


OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
}
DEFINITIONS: dict[str, Any] = {
    "d": {"type": "boolean"},
    "o": OBJECT,
    "p": {"type": "object", "properties": {"z": {"minimum": 2}}, "allOf": [{"$ref": "#/$defs/o"}]},
}
NESTED = st.one_of(TYPED, composed(TYPED))
COMPOSED = st.one_of(NESTED, composed(NESTED))


@examples(60, suppress_health_check=list(HealthCheck))
@given(COMPOSED, st.booleans(), st.randoms())
def test_an_answer_may_be_what_fits_and_nothing_else(
    schema: Any, closed: bool, draw: random.Random
) -> None:
    """A closed schema may allow less."""
    schema = {**schema, "$defs": DEFINITIONS, "x": {"y": {"properties": {"z": {"type": "null"}}}}}
    schema["x"]["y"]["type"] = "object"
    try:
        matcher = schema_matcher(schema, closed=closed, tokenizer=BYTES)
    except GrammarError:
        assume(False)
    for value in tried(schema, draw, 8):
        fits, allowed = VALIDATOR(schema).is_valid(value), allows(matcher, value)
        assert allowed == fits or (closed and fits), value


@examples(50, suppress_health_check=list(HealthCheck))
@given(SCHEMA, st.booleans(), st.randoms(use_true_random=False))
def test_what_is_not_refused_is_kept(schema: Any, closed: bool, draw: random.Random) -> None:
    schema = {**schema, "$defs": {"d": {"type": "boolean"}}}
    try:
        compiled = schema_matcher(schema, closed=closed)
    except GrammarError:
        assume(False)
    for _ in range(3):
        if (said := answer(compiled, draw)) is not None:
            VALIDATOR(schema).validate(json.loads(said))


BASE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
MORE = {"type": "object", "properties": {"b": {"type": "string"}}}
TOGETHER: list[dict[str, Any]] = [
    {"allOf": [BASE, MORE]},
    {"allOf": [{"$ref": "#/$defs/base"}, MORE], "$defs": {"base": BASE}},
    {"$ref": "#/$defs/base", **MORE, "$defs": {"base": BASE}},
    {"$ref": "#/components/schemas/base", **MORE, "components": {"schemas": {"base": BASE}}},
    {**BASE, "anyOf": [MORE]},
    {"allOf": [{"allOf": [BASE]}, MORE], "unevaluatedProperties": False},
    {"allOf": [BASE, {**MORE, "patternProperties": {"^b$": {"minLength": 1}}}]},
]


@pytest.mark.parametrize("schema", TOGETHER, ids=str)
def test_an_object_has_the_properties_of_all_that_is_said_of_it(schema: Any) -> None:
    matcher = schema_matcher(schema, tokenizer=BYTES)
    fitting: list[Any] = [{"a": 1, "b": "x"}]
    wrong: list[Any] = [{"a": "x"}, {"b": "x"}, {"a": 1, "b": 2}, {"a": 1, "c": 1}]
    assert all(VALIDATOR(schema).is_valid(value) for value in fitting)
    assert [value for value in [*fitting, *wrong] if allows(matcher, value)] == fitting


TUPLES = [
    ({"items": [{"type": "number"}, {"type": "string"}]}, [[1, "a"], [1], [1, 2], ["a"], [1, "a"]]),
    (
        {"items": [{"type": "number"}], "additionalItems": {"type": "null"}},
        [[1, None], [1, 2], [], [1, None, None]],
    ),
    ({"items": [{"type": "number"}], "additionalItems": False}, [[1], [1, 2], [], ["a"]]),
    ({"items": {"type": "number"}, "additionalItems": False}, [[1, 2], ["a"]]),
]


@pytest.mark.parametrize(("schema", "values"), TUPLES, ids=str)
def test_tuples_are_also_spelled_as_in_draft_7(schema: Any, values: list[Any]) -> None:
    matcher = schema_matcher({"type": "array", **schema}, tokenizer=BYTES)
    for value in values:
        assert allows(matcher, value) is jsonschema.Draft7Validator(schema).is_valid(value), value
    short = {"type": "array", "prefixItems": [{"type": "null"}]}
    assert not allows(schema_matcher(short), [None, 1])
    assert allows(schema_matcher({**short, "minItems": 2}), [None, 1])


@pytest.mark.parametrize("closed", [True, False])
def test_strings_of_bounded_length_hold_no_control_characters(closed: bool) -> None:
    matcher = schema_matcher({"type": "string", "maxLength": 3}, closed=closed)
    assert accepts(matcher, b'"abc"')
    assert not accepts(matcher, b'"abcd"')
    assert not any(accepts(matcher, [ord('"'), code, ord('"')]) for code in range(32))
