"""Calls found in growing text, however it is cut; and what tools mean for a plan."""

from __future__ import annotations

import json
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.parse import parse_request
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.tools.calls import CallParser
from sluice_runtime.server.tools.formats import HERMES, format_of
from sluice_runtime.server.tools.plan import ToolPlan, plan_tools

KNOWN = "{{ tools }} <tool_call>"


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def parsed(parts: list[str]) -> tuple[str, list[tuple[int, str, str, Any]]]:
    ids = count()
    parser = CallParser(HERMES, lambda: f"id{next(ids)}")
    results = [*(parser.push(part) for part in parts), parser.finish()]
    calls = [found for result in results for found in result.calls]
    assert parser.calls == len(calls)
    return "".join(result.text for result in results), [
        (one.index, one.call_id, one.name, json.loads(one.arguments)) for one in calls
    ]


CASES = [
    ("no call", "no call", []),
    ("ends in a < ", "ends in a < ", []),
    (call("f", x=1), "", [(0, "id0", "f", {"x": 1})]),
    ("Well:\n" + call("f"), "Well:", [(0, "id0", "f", {})]),
    (
        call("f", x=1) + "\n" + call("g", y="a") + "\n",
        "",
        [(0, "id0", "f", {"x": 1}), (1, "id1", "g", {"y": "a"})],
    ),
    ("<tool_call>not json</tool_call> so", "<tool_call>not json</tool_call> so", []),
    ('<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', []),
    (
        "<tool_call>no</tool_call>" + call("f"),
        "<tool_call>no</tool_call>",
        [(0, "id0", "f", {})],
    ),
    (call("f", x="a </tool_call> b"), "", [(0, "id0", "f", {"x": "a </tool_call> b"})]),
    (call("f", x=1).removesuffix("\n</tool_call>"), "", [(0, "id0", "f", {"x": 1})]),
    ("<tool_call>" + "[" * 5000, "<tool_call>" + "[" * 5000, []),
    ('<tool_call>{"name": "f"', '<tool_call>{"name": "f"', []),
    ("<tool_call><tool_call>", "<tool_call><tool_call>", []),
]


@pytest.mark.parametrize(("text", "rest", "calls"), CASES)
def test_calls_are_taken_out_of_the_text(text: str, rest: str, calls: list[Any]) -> None:
    assert parsed([text]) == (rest, calls)
    assert parsed(list(text)) == (rest, calls)


@given(st.sampled_from(CASES[:10]), st.data())
def test_it_does_not_matter_how_the_text_is_cut(case: Any, data: st.DataObject) -> None:
    text, rest, calls = case
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    bounds = [0, *cuts, len(text)]
    parts = [text[a:b] for a, b in pairwise(bounds)]
    assert parsed(parts) == (rest, calls)


def test_text_is_out_as_soon_as_it_is_no_call() -> None:
    parser = CallParser(HERMES, lambda: "id")
    assert parser.push("a <tool").text == "a"
    assert parser.push("box").text == " <toolbox"
    assert parser.push(" and  ").text == " and"
    assert parser.push("more").text == "  more"


def test_families_are_known_by_their_template() -> None:
    assert format_of(KNOWN) is HERMES
    assert format_of("<tool_call><function=") is None
    assert format_of("{{ messages }}") is None


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def plan(template: str = KNOWN, **fields: Any) -> ToolPlan | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return plan_tools(parse_request(ChatRequest, msgspec.json.encode(body)), template)


def held_to(**fields: Any) -> dict[str, Any]:
    planned = plan(**fields)
    assert planned is not None
    assert planned.wish is not None
    assert (planned.wish.field, planned.wish.kind) == ("tools", "tags")
    value: dict[str, Any] = json.loads(planned.wish.text)["format"]
    return value


F, G = tool("f"), tool("g", parameters={"type": "object", "properties": {"x": {}}})


def test_without_tools_or_with_none_there_is_no_plan() -> None:
    assert plan() is None
    assert plan(tools=[]) is None
    assert plan(tools=[F], tool_choice="none") is None
    assert plan("no tools here", tools=[F], tool_choice="none") is None


def test_auto_leaves_the_model_free() -> None:
    planned = plan(tools=[F])
    assert planned is not None
    assert planned.wish is None
    assert planned.shown == [F]
    with pytest.raises(InvalidRequestError, match="format of tool calls is not known"):
        plan("no tools here", tools=[F])


def test_strict_tools_and_single_calls_hold_the_calls_of_a_free_text() -> None:
    strict = held_to(tools=[tool("f", strict=True), G])
    assert (strict["type"], strict["stop_after_first"]) == ("triggered_tags", False)
    single = held_to(tools=[F], parallel_tool_calls=False)
    assert (single["type"], single["stop_after_first"]) == ("triggered_tags", True)


def test_required_and_named_tools_must_be_called_by_any_model() -> None:
    for template in (KNOWN, "no tools here"):
        required = held_to(template=template, tools=[F, G], tool_choice="required")
        assert [tag["begin"] for tag in required["tags"]] == [
            '<tool_call>\n{"name": "f", "arguments": ',
            '<tool_call>\n{"name": "g", "arguments": ',
        ]
        assert required["at_least_one"]
        assert not required["stop_after_first"]
    named = held_to(tools=[F, G], tool_choice={"type": "function", "function": {"name": "g"}})
    assert len(named["tags"]) == 1
    assert named["stop_after_first"]


def test_arguments_that_could_not_be_kept_to_their_schema_are_refused() -> None:
    unlike = tool("f", parameters={"type": "object", "not": {}})
    assert plan(tools=[unlike]) is not None
    with pytest.raises(InvalidRequestError) as error:
        plan(tools=[unlike], tool_choice="required")
    assert str(error.value) == "tools.f: not is not implemented"


def test_earlier_calls_are_shown_with_their_arguments_as_objects() -> None:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c", "content": "two"},
    ]
    body = msgspec.json.encode({"model": "m", "messages": messages})
    _, assistant, result = [m.for_template() for m in parse_request(ChatRequest, body).messages]
    function = {"name": "f", "arguments": {"x": 1}}
    assert assistant["tool_calls"] == [{"id": "c", "type": "function", "function": function}]
    assert result == {"role": "tool", "content": "two", "tool_call_id": "c"}
