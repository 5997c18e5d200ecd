"""Values between tags: where they end, and which type they have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluice_runtime.server.tools.formats import (
    QWEN3_CODER,
)

from tests.runtime.server.test_tool_arguments import objects, read, value, xml

NEXT_TAGS = [
    (xml("<parameter=a>\nx", value("b", "y")), {"a": "x", "b": "y"}),
    (xml("<parameter=a>x<parameter=b>y"), {"a": "x", "b": "y"}),
    (xml("<parameter=a>\n<parameter=b>\ny"), {"a": "", "b": "y"}),
    (xml("<parameter=a>\nx\n<parameter=new>\n1"), {"a": "x", "new": 1}),
    (xml('<parameter=record>\n{"m": "A", "on": true}'), {"record": {"m": "A", "on": True}}),
    (xml('<parameter=record>\n{"m": "A"', value("b", "y")), {"record": {"m": "A"}, "b": "y"}),
    (xml(value("a", "</function>\n</tool_call>")), {"a": "</function>\n</tool_call>"}),
    (xml(value("a", "x </function> y <tool_call>\n"), value("b", "y")),
     {"a": "x </function> y <tool_call>\n", "b": "y"}),
    (xml(value("record", '{"</function><parameter=": [">"]}')),
     {"record": {"</function><parameter=": [">"]}}),
    (xml(value("a", "<function=g>"), "<parameter=b>y"), {"a": "<function=g>", "b": "y"}),
    (xml(value("a", "'<parameter=' + <parameter={b}> <parameter=new> <parameter")),
     {"a": "'<parameter=' + <parameter={b}> <parameter=new> <parameter"}),
    (xml(value("a", "x"), "and so", value("b", "y"))[:-12], {"a": "x", "b": "y"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "arguments"), NEXT_TAGS)
def test_a_value_ends_at_its_tag_or_where_the_next_one_begins(
    text: str, arguments: dict[str, Any]
) -> None:
    assert objects(QWEN3_CODER, text)[1] == [("f", arguments)]


def test_text_between_arguments_comes_behind_the_call() -> None:
    text, calls = objects(QWEN3_CODER, xml(value("a", "x"), "and so", value("b", "y")) + " done")
    assert (text, calls) == ("and so done", [("f", {"a": "x", "b": "y"})])


def test_text_behind_an_unfinished_value_is_text() -> None:
    text = "<function=f><parameter=a>\nx\n</function>\nI wait."
    assert objects(QWEN3_CODER, text) == ("I wait.", [("f", {"a": "x"})])


TYPED = [
    ("zip", "12345", "12345"),
    ("loop", "12", 12),
    ("all", "12345", "12345"),
    ("some", "12", "12"),
    ("some", "null", None),
    ("maybe", "None", None),
    ("maybe", "12", "12"),
    ("unit", "1", "1"),
    ("unit_or_none", "1", "1"),
    ("unit_or_none", "null", None),
    ("fixed", "7", "7"),
    ("n", "12", 12),
    ("flag", "True", True),
    ("flag", "false", False),
    ("flag", "perhaps", "perhaps"),
    ("items", "['a', 'b', None]", ["a", "b", None]),
    ("items", "(1, 2)", [1, 2]),
    ("items", '["a\nb", NaN]', ["a\nb", None]),
    ("items", "a, b", "a, b"),
    ("tags", "['a']", ["a"]),
    ("record", "{'x': True, 'y': {'z': None}}", {"x": True, "y": {"z": None}}),
    ("record", '{"x": "a\tb"}', {"x": "a\tb"}),
    ("record", "{'x': 1} and more", "{'x': 1} and more"),
    ("any", "['a']", "['a']"),
    ("any", '{"x": NaN}', '{"x": NaN}'),
    ("any", "1", 1),
    ("a", "['a']", "['a']"),
    ("items", "[" * 5000, None),
    ("record", "__import__('os').abort()", "__import__('os').abort()"),
]


@pytest.mark.parametrize(("name", "text", "expected"), TYPED)
def test_values_have_the_type_of_their_schema(name: str, text: str, expected: Any) -> None:
    _, ((_, arguments),) = read(QWEN3_CODER, [xml(value(name, text))])
    if expected is not None or text in ("null", "None"):
        assert json.loads(arguments)[name] == expected
