"""Best-effort schemas: what the library does not take is left out by name, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sluice_runtime.grammar import constraint
from sluice_runtime.grammar.best_effort import fitted
from sluice_runtime.grammar.constraint import CheckBudget, ChecksSpentError
from sluice_runtime.grammar.json_schema import best_effort_schema
from sluice_runtime.grammar.schema_keywords import MAPS, RESTRICTING

from tests.examples import examples
from tests.runtime.grammar.drawing import BYTES, matcher_of
from tests.runtime.grammar.schema_values import allows, tried
from tests.runtime.grammar.test_random_schemas import COMPOSED, DEFINITIONS, VALIDATOR

AHEAD = {"type": "string", "pattern": "^(?!a)", "maxLength": 2}


def left_out(schema: Any, *, closed: bool = True) -> tuple[Any, list[str]]:
    """The schema as it is compiled, and what it lacks."""
    usable = best_effort_schema(schema, closed=closed)
    places = fitted(usable, CheckBudget())
    assert places is not None
    return usable.schema, [*usable.left_out, *places]


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"items": AHEAD}, ["items.pattern"]),
        (
            {"properties": {"a": AHEAD, "b": {"items": AHEAD}}},
            ["properties.a.pattern", "properties.b.items.pattern"],
        ),
        ({"anyOf": [AHEAD, {"type": "null"}]}, ["anyOf[0].pattern"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": AHEAD}}, ["$defs.a.pattern"]),
        ({"$ref": "#/x/a", "x": {"a": {"items": AHEAD}}}, ["x.a.items.pattern"]),
        (
            {"minProperties": 1, "$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": AHEAD}}}},
            ["$defs.a.properties.b.pattern"],
        ),
        ({"patternProperties": {"(?=a)": {}}}, ["patternProperties"]),
        ({"type": "array", "minItems": -1, "maxItems": "2"}, ["maxItems", "minItems"]),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, ["required"]),
        ({"$ref": "other.json"}, ["$ref"]),
        ({"items": {"$ref": "#/$defs/b"}}, ["items.$ref"]),
        ({"items": 3}, ["items"]),
        ({"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}, ["maxProperties"]),
        ({"multipleOf": 5000}, ["multipleOf"]),
        ({"type": "string", "minLength": 1}, []),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_library_does_not_take_is_left_out_by_its_place(
    schema: Any, places: list[str]
) -> None:
    assert left_out(schema)[1] == places


def test_what_is_about_the_rest_goes_with_what_it_is_the_rest_of() -> None:
    schema = {"type": "object", "patternProperties": {"^(?=a)": {}}, "additionalProperties": False}
    compiled, places = left_out(schema)
    assert places == ["patternProperties"]
    assert allows(matcher_of("json_schema", json.dumps(compiled), BYTES), {"a": 1})


def test_a_schema_is_given_up_where_checks_would_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constraint, "MAX_CHECKED_CHARACTERS", 5_000)
    ahead = [{"type": "string", "pattern": f"^(?!{i})"} for i in range(9)]
    schema = {"type": "object", "properties": {f"p{i}": part for i, part in enumerate(ahead)}}
    assert fitted(best_effort_schema(schema), CheckBudget()) is None


def test_a_schema_is_given_up_where_nothing_is_left_to_leave_out() -> None:
    """The library looks for all references, also those of a definition that nothing refers to."""
    definitions = {"a": {"$ref": "#/$defs/b"}, "b": {}, "c": {"$ref": "x.json"}}
    schema = {"type": "object", "$defs": definitions}
    checks = list[str]()

    class Counted(CheckBudget):
        def invalid(self, root: Any, part: Any) -> str:
            checks.append("")
            if len(checks) > 99:
                raise ChecksSpentError
            return super().invalid(root, part)

    assert fitted(best_effort_schema(schema), Counted()) is None
    assert len(checks) < 20


UNENFORCED = st.fixed_dictionaries(
    {},
    optional={
        "uniqueItems": st.just(True),
        "contains": st.just({"type": "integer"}),
        "not": st.sampled_from([{"type": "null"}, {"const": "a"}]),
        "if": st.just({"required": ["a"]}),
        "then": st.just({"required": ["b"]}),
        "dependentRequired": st.just({"a": ["b"]}),
        "pattern": st.sampled_from(["^(?!b)", r"\bfoo", "a"]),
    },
)


@examples(40, suppress_health_check=list(HealthCheck))
@given(COMPOSED, UNENFORCED, UNENFORCED, st.randoms())
def test_only_what_is_named_is_not_enforced(
    schema: Any, own: dict[str, Any], inner: dict[str, Any], draw: random.Random
) -> None:
    schema = {**schema, **own} if schema else {}
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {
            name: {**part, **inner} if part else part for name, part in schema["properties"].items()
        }
    schema |= {"$defs": DEFINITIONS, "x": {"y": {"type": "object"}}}
    usable = best_effort_schema(schema, closed=False)
    places = fitted(usable, CheckBudget())
    if places is None:
        return
    matcher = matcher_of("json_schema", json.dumps(usable.schema), BYTES)
    enforced = not (usable.left_out or places)
    for value in tried(schema, draw, 6):
        fits, allowed = VALIDATOR(schema).is_valid(value), allows(matcher, value)
        assert allowed == fits or (allowed and not enforced), value


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2),
        st.sampled_from(["", "a", "(?=a)", "#", "#/$defs/a", "object", "string", "date"]),
    ),
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(st.sampled_from([*sorted(RESTRICTING), *MAPS, "a"]), part, max_size=4),
    ),
    max_leaves=12,
)


@examples(30, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from([*sorted(RESTRICTING), *MAPS]), JSON, max_size=4))
def test_any_object_is_a_schema_that_is_best_effort(schema: dict[str, Any]) -> None:
    usable = best_effort_schema(schema)
    if fitted(usable, CheckBudget()) is not None:
        matcher_of("json_schema", json.dumps(usable.schema), BYTES)
