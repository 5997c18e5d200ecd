"""Grammars of many tools, or of long ones: few builds, and the small ones stay exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sluice_runtime.grammar import constraint
from sluice_runtime.server.structured import MAX_CHARACTERS
from sluice_runtime.server.tools.argument_schemas import call_rules
from sluice_runtime.server.tools.call_grammars import Rules
from sluice_runtime.server.tools.formats import FORMATS, HERMES, ToolFormat

from tests.pairwise import matrix
from tests.runtime.grammar.drawing import BYTES, accepts, matcher_of
from tests.runtime.server.test_argument_schemas import (
    BOTH,
    EVERY,
    LEFT_OUT,
    RECORD,
    call_of,
    left_out,
    planned,
    refusal,
    tool,
)

MAX_BUILDS = 4


@pytest.mark.parametrize(
    ("form", "kind"),
    matrix(FORMATS, ["differ", "ahead"], others=pytest.mark.full, together=1),
    ids=lambda value: getattr(value, "name", None),
)
def test_whatever_the_number_of_tools_the_whole_is_built_few_times(
    form: ToolFormat, kind: str
) -> None:
    """Each tool has a schema of its own, and all together are too long."""
    limits = {"differ": {}, "ahead": {"pattern": "^(?!a)"}}[kind]
    schemas = {
        f"{number:0128}": {
            "type": "object",
            "properties": {f"p{number}_{i}": {"type": "string", **limits} for i in range(3)},
            "additionalProperties": False,
        }
        for number in range(512)
    }
    builds = list[int]()

    def build(schemas: Mapping[str, Any]) -> Rules:
        builds.append(len(schemas))
        return form.grammar.calls(schemas, {}, at_most_one=False)

    rules = call_rules(schemas, (), form, build)
    assert len(builds) <= MAX_BUILDS
    assert set(builds) == {512}
    assert rules.characters <= MAX_CHARACTERS
    assert any(": " not in place for place in rules.left_out)
    assert rules.characters > 0.6 * MAX_CHARACTERS  # about as many as fit


@EVERY
def test_tools_whose_arguments_are_any_object_share_a_rule(form: ToolFormat) -> None:
    names = ["a", "ab", "a.b", "b"]
    tools = [tool(name, {}) for name in names] + [tool("f", RECORD)]
    spec = planned(form, tools=tools, tool_choice="required").spec
    assert spec is not None
    assert spec.text.count('"additionalProperties": true') <= 1
    matcher = matcher_of(spec.kind, spec.text, BYTES)
    for name in names:
        call = call_of(form, {"x": 1}, name)
        assert accepts(matcher, call)
        assert not accepts(matcher, call_of(form, {"x": 1}, f"{name}x"))
    assert accepts(matcher, call_of(form, {"k": "x"}))
    assert not accepts(matcher, call_of(form, {"x": 1}))


def test_a_large_tool_is_given_up_and_not_the_small_ones() -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}}
    tools = [tool(f"large{n}", {**large, "required": [f"p{n}"]}) for n in range(3)]
    named = left_out(HERMES, tools=[*tools, *BOTH], tool_choice="required")
    assert named == ["tools.large2", *LEFT_OUT]


def test_where_the_checks_are_spent_the_tools_before_keep_their_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constraint, "MAX_CHECKED_CHARACTERS", 5_000)
    parts = [{f"p{i}": {"type": "string", "pattern": f"^(?!{n}{i})"} for i in "ab"} for n in "0123"]
    tools = [tool(f"t{n}", {"type": "object", "properties": part}) for n, part in enumerate(parts)]
    named = left_out(HERMES, tools=[*tools, tool("f", RECORD)], tool_choice="required")
    places = [f"tools.t{n}: properties.p{i}.pattern" for n in (0, 1) for i in "ab"]
    assert named == [*places, "tools.t2", "tools.t3"]


def test_strict_tools_that_are_too_long_are_refused_by_their_length() -> None:
    large = {"type": "object", "properties": {f"p{i}": {"enum": ["x" * 70]} for i in range(900)}}
    error = refusal(HERMES, tools=[tool("f", large, strict=True), *BOTH])
    assert "are not allowed for the schemas of strict tools; allowed: at most 65536" in str(error)
