"""Every text of an accepted conversation is in the prompt, or a header says which is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.model.chat_template import ChatTemplate
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.server import prompt_check
from sluice_runtime.server.app import CHAT, MESSAGES, RESPONSES
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.prompt_check import TEXT_CHARACTERS, PromptCheck
from sluice_runtime.server.prompts import ServedModel, unread_options
from sluice_runtime.server.tools.formats import HERMES

from tests.examples import examples
from tests.runtime.server.chat_templates import ANY_ROLE, KNOWN_ROLES, TEMPLATES, named
from tests.runtime.server.test_prompts import CONTEXT, SERVED

ROUTES: Final = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
TOOL: Final = {"name": "get_weather", "parameters": {"type": "object"}}
TOOLS: Final = [{"type": "function", "function": TOOL}]


def served(template: ChatTemplate, *, strict: bool = False) -> ServedModel:
    text = replace(SERVED.text, template=template, tool_format=HERMES)
    limits = Limits(context_length_tokens=1 << 20, kv_pool_tokens=1 << 20)
    return replace(SERVED, text=text, limits=limits, strict=strict)


def plan(
    template: ChatTemplate, body: Mapping[str, Any], route: str = "chat", *, strict: bool = False
) -> ChoicePlan:
    kind: Any = ROUTES[route]
    request = parse_request(kind.kind, json.dumps(body).encode(), strict=False).request
    chosen: ChoicePlan = kind.plan(served(template, strict=strict), CONTEXT, request)[0]
    return chosen


def prompt_of(planned: ChoicePlan) -> str:
    return bytes(planned.prompt_ids).decode()


def rendered(
    template: str, *messages: dict[str, Any], strict: bool = False, **fields: Any
) -> tuple[str, list[str]]:
    planned = plan(TEMPLATES[template], {"messages": messages, **fields}, strict=strict)
    return prompt_of(planned), list(planned.template_changes)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({"tool_calls": list(calls)} if calls else {})


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


DEVELOPER: Final = {"role": "developer", "content": "Be brief."}


def test_the_developer_is_the_system_where_the_template_knows_no_developer() -> None:
    assert rendered("known roles", DEVELOPER, user("hi")) == (
        "<system>Be brief.</><user>hi</>",
        [],
    )
    knows = named(ANY_ROLE + "{# developer #}", KNOWN_ROLES)
    body = {"messages": [DEVELOPER, user("hi")]}
    assert prompt_of(plan(knows, body)) == "<developer>Be brief.</><user>hi</>"
    planned = plan(knows, {**body, "tools": TOOLS})
    assert "<system>Be brief.</>" in prompt_of(planned), "the one for tools does not know it"


@pytest.mark.parametrize(
    ("messages", "prompt", "steps"),
    [
        ([system("a"), system("b"), user("c")], "<user>a\n\nb\nc</>", ["turns-joined"]),
        ([system("a"), DEVELOPER, user("c")], "<user>a\n\nBe brief.\nc</>", ["turns-joined"]),
        ([user("a"), user("b")], "<user>a\n\nb</>", ["turns-joined"]),
        (
            [user("a"), assistant("b"), system("c"), user("d")],
            "<user>a</><assistant>b</><user>c\n\nd</>",
            ["turns-joined"],
        ),
        ([assistant("a"), user("b")], "<user></><assistant>a</><user>b</>", ["turns-joined"]),
        (
            [user("a"), assistant("b", call("c", x=1)), result("c", "d"), user("e")],
            '<user>a</><assistant>b\n<tool_call>\n{"name": "get_weather", "arguments": {"x": 1}}\n'
            "</tool_call></><user><tool_response>\nd\n</tool_response>\n\ne</>",
            ["tools-as-text"],
        ),
    ],
)
def test_a_conversation_that_an_alternating_template_refuses_is_shown_in_other_turns(
    messages: list[dict[str, Any]], prompt: str, steps: list[str]
) -> None:
    assert rendered("alternating", *messages) == (prompt, [f"messages[].{step}" for step in steps])
    with pytest.raises(InvalidRequestError, match="must alternate") as refused:
        rendered("alternating", *messages, strict=True)
    assert refused.value.param == "messages"


def test_a_template_without_a_system_role_shows_it_in_the_user_s_turn() -> None:
    assert rendered("no system", system("a"), user("b")) == (
        "<user>a\n\nb</>",
        ["messages[].system-in-user"],
    )


CALLS: Final = (
    user("a"),
    assistant(None, call("call_1", x=1), call("call_2", x=2)),
    result("call_2", "two"),
    result("call_1", "one"),
)


def test_calls_are_divided_for_a_template_that_takes_one_a_turn() -> None:
    prompt, changes = rendered("single calls", *CALLS)
    assert prompt == (
        '<user>a</><assistant>{"name": "get_weather", "parameters": {"x": 1}}</>'
        '<tool>"one"</><assistant>{"name": "get_weather", "parameters": {"x": 2}}</>'
        '<tool>"two"</>'
    )
    assert changes == ["messages[].ids-shortened", "messages[].calls-divided"]


def test_ids_are_written_as_a_template_demands_them() -> None:
    prompt, changes = rendered("strict calls", *CALLS)
    assert "call_1" not in prompt
    assert prompt.count('"id": "') == 2
    assert changes == ["messages[].ids-shortened"]
    assert prompt == rendered("strict calls", *CALLS)[0], "so that prefixes are cached"


def test_what_a_template_does_not_show_is_named() -> None:
    shown = rendered("last turn only", user("ab"), assistant("cd"), user("ef"))
    assert shown == ("ef|", ["messages[].content"])
    with pytest.raises(InvalidRequestError, match=r"messages\[\].content: .*strictRequests"):
        rendered("last turn only", user("ab"), user("ef"), strict=True)


def test_text_beside_calls_stands_before_them_where_a_template_drops_it() -> None:
    beside = assistant("Let me see.", call("c12345678", x=1))
    prompt, changes = rendered("strict calls", user("a"), beside, result("c12345678", "b"))
    assert prompt.startswith("[INST] a[/INST] Let me see.</s>[TOOL_CALLS][")
    assert changes == ["messages[].text-before-calls"]


def test_a_text_that_another_contains_is_missed_too() -> None:
    prompt, changes = rendered("last turn only", user("4"), user("44"))
    assert (prompt, changes) == ("4\n\n44|", ["messages[].turns-joined"])
    prompt, changes = rendered("last turn only", user("4"), assistant("5"), user("44"))
    assert (prompt, changes) == ("44|", ["messages[].content"])


def test_a_silent_template_is_given_results_as_text() -> None:
    prompt, changes = rendered("drops results", *CALLS)
    assert "<user><tool_response>\ntwo\n</tool_response>" in prompt
    assert changes == ["messages[].tools-as-text"]


def test_calls_that_no_prompt_has_are_named_though_their_tools_are_shown() -> None:
    called = assistant(None, call("c", x=1))
    prompt, changes = rendered("drops calls", user("x 1"), called, result("c", "d"), tools=TOOLS)
    assert prompt.endswith("<user>x 1</><assistant></><tool>d</>"), "as transformers writes it"
    assert changes == ["messages[].tool_calls"]


def test_calls_stay_calls_where_only_the_text_beside_them_is_lost() -> None:
    called = assistant("Let me see.", call("c", x=1))
    prompt, changes = rendered("calls or text", user("a"), called, result("c", "d"))
    assert "<tool>d</>" in prompt
    assert changes == ["messages[].content"]


def test_what_a_template_shows_beside_tools_stays_as_it_is() -> None:
    history = [user("a"), assistant(None, call("c", x=1)), result("c", "d")]
    prompt, changes = rendered("calls with tools", *history, tools=TOOLS)
    assert "<assistant><tool_call>" in prompt
    assert prompt.endswith("<tool>d</>")
    assert changes == []


def test_calls_with_one_id_have_a_result_each() -> None:
    history = [user("a"), assistant(None, call("c", x=1), call("c", x=2))]
    prompt, changes = rendered("single calls", *history, result("c", "one"), result("c", "two"))
    places = [prompt.index(text) for text in ('"x": 1', '"one"', '"x": 2', '"two"')]
    assert places == sorted(places)
    assert changes == ["messages[].ids-shortened", "messages[].calls-divided"]


class Counted(str):
    """A prompt that counts the characters which are searched."""

    searched = 0

    def find(self, text: str, start: Any = 0, end: Any = None) -> int:
        at = super().find(text, start)
        Counted.searched += (len(self) if at < 0 else at) - int(start or 0)
        return at

    def count(self, text: str, *bounds: Any) -> int:
        Counted.searched += len(self)
        return super().count(text, *bounds)


def test_looking_for_texts_is_bounded_over_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_check, "MAX_CHARACTERS", 100_000)
    turns = [user(f"text {number}") for number in range(10_000)]
    check = PromptCheck(turns, "")
    assert len([text for turn in check._turns for text in turn]) < 100_000 / TEXT_CHARACTERS
    check, Counted.searched = PromptCheck(turns[:5], ""), 0
    prompt = Counted("x" * 5_000)
    for _ in range(1_000):
        check.unseen(prompt)
    assert 10_000 < Counted.searched <= 110_000
    assert check.unseen(prompt) == [], "what is not searched counts as shown"


@pytest.mark.parametrize("route", ["chat", "messages"])
@pytest.mark.parametrize(
    "more",
    [{"tools": []}, {"tool_choice": "none"}, {"tools": [{"type": "web_search_20250305"}]}],
    ids=["none", "none to call", "hosted"],
)
def test_options_are_of_the_template_that_is_rendered(route: str, more: dict[str, Any]) -> None:
    if route == "chat" and more.get("tools"):
        return  # a chat has no tools of the server
    tools = {"chat": TOOLS, "messages": [TOOL | {"input_schema": {"type": "object"}}]}[route]
    body: dict[str, Any] = {"messages": [user("hi")], "tools": tools} | more
    if route == "messages":
        body |= {"model": "m", "max_tokens": 5, "thinking": {"type": "adaptive"}}
        if "tool_choice" in more:
            body["tool_choice"] = {"type": "none"}
        for hosted in more.get("tools", ()):
            hosted |= {"name": "web_search"}
    else:
        body["chat_template_kwargs"] = {"enable_thinking": True}
    thinks = named(ANY_ROLE + "{% if enable_thinking %}<think>{% endif %}", KNOWN_ROLES)
    kind: Any = ROUTES[route]
    request = parse_request(kind.kind, json.dumps(body).encode(), strict=False).request
    assert unread_options(served(thinks).text, request, strict=True) == []
    assert prompt_of(kind.plan(served(thinks), CONTEXT, request)[0]).endswith("<think>")


def test_reasoning_that_a_template_leaves_out_is_no_text() -> None:
    messages = [user("a"), assistant("b") | {"reasoning_content": "hm"}, user("c")]
    assert rendered("known roles", *messages)[1] == []


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": TOOL}])
def test_tools_that_no_template_shows_are_named(choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice}
    assert rendered("any role", user("get_weather"), **fields)[1] == ["tools"]
    assert rendered("known roles", user("get_weather"), **fields)[1] == []
    assert rendered("named", user("a"), **fields)[1] == []
    with pytest.raises(InvalidRequestError, match=r"tools: .*does not show") as refused:
        rendered("any role", user("a"), strict=True, **fields)
    assert refused.value.param == "tools"
    assert rendered("any role", user("a"), tools=TOOLS, tool_choice="none")[1] == []
    called_as_a_role = {"type": "function", "function": {"name": "user"}}
    assert rendered("any role", user("a"), tools=[called_as_a_role])[1] == ["tools"]


def test_tools_that_a_template_shows_at_times_are_named_at_others() -> None:
    assert rendered("strict calls", user("a"), tools=TOOLS)[1] == []
    assert "tools" in rendered("strict calls", *CALLS, tools=TOOLS)[1]


@pytest.mark.parametrize(("template", "most"), [("single calls", True), ("known roles", False)])
def test_an_answer_has_no_more_calls_than_its_template_takes(template: str, most: bool) -> None:
    body = {"messages": [user("a")], "tools": TOOLS}
    for choice in ("auto", "required"):
        planned = plan(TEMPLATES[template], {**body, "tool_choice": choice})
        assert planned.reading is not None
        assert planned.reading.at_most_one == most
        text = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>\n' * 2
        parser = planned.reading.parser("a")
        parts = [*parser.push(text).calls, *parser.finish().calls]
        assert len({part.index for part in parts}) == (1 if most else 2)
        assert (planned.grammar is None) == (choice == "auto")
        if planned.grammar is not None:
            assert (")*" in planned.grammar.text.splitlines()[0]) == (not most)


def test_other_routes_name_it_as_their_own() -> None:
    items = [{"role": "developer", "content": "a"}, user("b"), user("c")]
    body = {"instructions": "i", "input": items}
    planned = plan(TEMPLATES["alternating"], body, "responses")
    assert prompt_of(planned) == "<user>i\n\na\nb\n\nc</>"
    assert planned.template_changes == ["input[].turns-joined"]


TEXTS = st.text('ab\n" é<', min_size=1, max_size=5) | st.sampled_from(["4", "Rome", "<b>", "it's"])
ARGUMENTS = st.dictionaries(
    st.sampled_from(["x", "city", "é"]),
    TEXTS | st.integers(-9, 10**6) | st.booleans() | st.none() | st.lists(TEXTS, max_size=2),
    max_size=2,
)
Called = tuple[str, dict[str, Any], str | None]
"""Id, arguments and result of a call."""


@st.composite
def called(draw: st.DrawFn) -> list[Called]:
    ids = draw(
        st.lists(st.sampled_from(["c1", "call_2", "abcdefghi", "x-y"]), max_size=3, unique=True)
    )
    return [(name, draw(ARGUMENTS), draw(st.none() | TEXTS)) for name in ids]


TURNS = st.lists(
    st.tuples(st.sampled_from(["system", "developer", "user"]), TEXTS, st.just(()))
    | st.tuples(st.just("assistant"), st.just("") | TEXTS, called()),
    min_size=1,
    max_size=6,
)
Turns = list[tuple[str, str, list[Called]]]


def chat_body(turns: Turns) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for role, text, calls in turns:
        message: dict[str, Any] = {"role": role, "content": text}
        if calls:
            message["tool_calls"] = [call(name, **arguments) for name, arguments, _ in calls]
        messages.append(message)
        messages += [result(name, text) for name, _, text in calls if text is not None]
    return {"messages": messages}


def responses_body(turns: Turns) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for role, text, calls in turns:
        items.append({"role": role, "content": text})
        for name, arguments, _ in calls:
            function = call(name, **arguments)["function"]
            items.append({"type": "function_call", "call_id": name, **function})
        items += [
            {"type": "function_call_output", "call_id": name, "output": text}
            for name, _, text in calls
            if text is not None
        ]
    return {"input": items}


def messages_body(turns: Turns) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for role, text, calls in turns:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        blocks += [
            {"type": "tool_use", "id": name, "name": "get_weather", "input": arguments}
            for name, arguments, _ in calls
        ]
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": blocks})
        results = [
            {"type": "tool_result", "tool_use_id": name, "content": text}
            for name, _, text in calls
            if text is not None
        ]
        if results:
            messages.append({"role": "user", "content": results})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "go on"})
    return {"model": "m", "max_tokens": 9, "messages": messages}


BODIES: Final = {"chat": chat_body, "responses": responses_body, "messages": messages_body}


def texts_of(turns: Turns) -> Iterator[str]:
    for _, text, calls in turns:
        yield text
        yield from (text for *_, text in calls if text is not None)


def objects_in(prompt: str) -> Iterator[object]:
    """All JSON objects in it."""
    decoder = json.JSONDecoder()
    for at, character in enumerate(prompt):
        if character == "{":
            try:
                yield decoder.raw_decode(prompt, at)[0]
            except ValueError:
                continue


@examples(40)
@given(
    template=st.sampled_from(sorted(TEMPLATES)),
    route=st.sampled_from(sorted(ROUTES)),
    turns=TURNS,
    with_tools=st.booleans(),
)
def test_every_text_is_in_the_prompt_or_named(
    template: str, route: str, turns: Turns, with_tools: bool
) -> None:
    assume(any(text.strip() for text in texts_of(turns)))
    body = BODIES[route](turns)
    if with_tools:
        custom = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
        flat = {"type": "function", **TOOL}
        body["tools"] = {"chat": TOOLS, "responses": [flat], "messages": [custom]}[route]
    planned = plan(TEMPLATES[template], body, route)
    prompt, field = prompt_of(planned), "input" if route == "responses" else "messages"
    changes = planned.template_changes
    if f"{field}[].content" not in changes:
        for text in texts_of(turns):
            spellings = (text.strip(), json.dumps(text.strip(), ensure_ascii=False)[1:-1])
            assert any(spelling in prompt for spelling in spellings)
    if f"{field}[].tool_calls" not in changes:
        arguments = [arguments for *_, calls in turns for _, arguments, _ in calls]
        objects = list(objects_in(prompt)) if arguments else []
        assert all(value in objects for value in arguments)
    if with_tools and "tools" not in changes:
        assert "get_weather" in prompt
