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
from tests.runtime.grammar.drawing import accepts, answer, schema_matcher

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
    pattern=st.sampled_from(["^a+$", "^[0-9]{2}$", "^(x|y)z$", "^.{1,3}$", "b", "^[^a]$"]),
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


@pytest.mark.parametrize("closed", [True, False])
def test_strings_of_bounded_length_hold_no_control_characters(closed: bool) -> None:
    matcher = schema_matcher({"type": "string", "maxLength": 3}, closed=closed)
    assert accepts(matcher, b'"abc"')
    assert not accepts(matcher, b'"abcd"')
    assert not any(accepts(matcher, [ord('"'), code, ord('"')]) for code in range(32))
