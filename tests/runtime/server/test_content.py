"""What the model does not see ends no conversation, on none of the routes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.model.chat_template import compiled_template
from sluice_runtime.model.tokenizer import ByteTokenizer
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.choice_plans import ChoicePlan, RequestContext, plan_chat
from sluice_runtime.server.messages.request import MessagesRequest
from sluice_runtime.server.messages.translation import plan_message
from sluice_runtime.server.prompts import ModelText, ServedModel
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.server.responses.translation import plan_response
from sluice_runtime.server.sampling_plan import Defaults
from sluice_runtime.server.tools.formats import HERMES

from tests.examples import examples

SOURCE = (
    "{% for m in messages %}{{ m.role }}({{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "<{{ c.function.name }}{{ c.function.arguments | tojson }}>{% endfor %})"
    "{% endfor %}"
)
TEMPLATE: Final = compiled_template(SOURCE, {}, "a test")
SERVED: Final = ServedModel(
    replace(ModelText(ByteTokenizer(), TEMPLATE, Defaults()), tool_format=HERMES),
    Limits(context_length_tokens=100_000, kv_pool_tokens=100_000),
    vocabulary_size=259,
)
CONTEXT: Final = RequestContext(seed=1, unix_seconds=0.0)
KINDS: Final[dict[str, list[str]]] = {
    "chat": ["image_url", "input_audio", "file", "video_url", "thinking", "odd"],
    "responses": ["input_image", "input_file", "input_audio", "computer_screenshot", "odd"],
    "messages": ["image", "document", "search_result", "tool_reference", "odd"],
}
ITEMS: Final = [
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
    "local_shell_call", "local_shell_call_output", "computer_call", "computer_call_output",
    "mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
    "item_reference", "shell_call", "apply_patch_call", "tool_search_call", "compaction", "odd",
]  # fmt: skip
BLOCKS: Final = ["server_tool_use", "web_search_tool_result", "mcp_tool_use", "fallback"]
Planning = Callable[[ServedModel, RequestContext, Any], list[ChoicePlan]]
PLANS: Final[dict[str, tuple[Any, Planning]]] = {
    "chat": (ChatRequest, plan_chat),
    "responses": (ResponsesRequest, plan_response),
    "messages": (MessagesRequest, plan_message),
}
FIELDS: Final = {"chat": "messages", "responses": "input", "messages": "messages"}


def planned(route: str, turns: Any) -> tuple[str, list[str]]:
    """The prompt, and what was named as skipped or ignored."""
    kind, plan = PLANS[route]
    body = {"model": "m", FIELDS[route]: turns}
    if route == "messages":
        body["max_tokens"] = 5
    parsed = parse_request(kind, json.dumps(body).encode(), strict=False)
    (choice,) = plan(SERVED, CONTEXT, parsed.request)
    return bytes(choice.prompt_ids).decode(), [*parsed.ignored, *parsed.request.skipped]


class History:
    """A conversation that is made up part by part; keeps what its prompt has to hold."""

    def __init__(self, route: str, draw: Any) -> None:
        self.route = route
        self.draw = draw
        self.shown: list[str] = []
        self.places: set[str] = set()
        self.turns: list[dict[str, Any]] = []
        self._numbers = itertools.count()

    def text(self) -> str:
        self.shown.append(f"text {next(self._numbers)}.")
        return self.shown[-1]

    def unseen(self, place: str, kinds: list[str]) -> dict[str, Any]:
        kind = self.draw(st.sampled_from(kinds))
        self.shown.append(f"[{kind}: not supported by this model]")
        self.places.add(f"{FIELDS[self.route]}[]{place}.{kind}")
        return {"type": kind, "id": "x", "data": {"url": "data:,x"}, "content": [1], "detail": None}

    def parts(self, place: str, kind: str, kinds: list[str]) -> list[dict[str, Any]]:
        some = self.draw(st.lists(st.booleans(), max_size=3))
        return [
            {"type": kind, "text": self.text()} if is_text else self.unseen(place, kinds)
            for is_text in some
        ]


def chat_turns(history: History) -> None:
    def message(role: str, **more: Any) -> None:
        parts = history.parts(".content[]", "text", KINDS["chat"])
        if role == "assistant" and history.draw(st.booleans()):
            parts.append({"type": "refusal", "refusal": history.text()})
        history.turns.append({"role": role, "content": parts, **more})

    message("system")
    for _ in range(history.draw(st.integers(1, 3))):
        message("user")
        function = {"name": "f", "arguments": "{}"}
        call = {"id": "c", "type": "function", "function": function}
        if history.draw(st.booleans()):
            message("assistant", tool_calls=[call])
            message("tool", tool_call_id="c")
        if history.draw(st.booleans()):
            message("assistant", function_call=function)
            message("function", name="f")
        message("assistant")
    history.turns.append({"role": "user", "content": history.text()})


def response_turns(history: History) -> None:
    def message(role: str, kind: str) -> None:
        parts = history.parts(".content[]", kind, KINDS["responses"])
        history.turns.append({"role": role, "content": parts})

    def items() -> None:
        for _ in range(history.draw(st.integers(0, 2))):
            history.turns.append(history.unseen("", ITEMS))

    items()
    for _ in range(history.draw(st.integers(1, 3))):
        message("user", "input_text")
        items()
        call: dict[str, Any] = {"call_id": "c", "name": "f"}
        kind, content = history.draw(
            st.sampled_from([("function", {"arguments": "{}"}), ("custom_tool", {"input": "x"})])
        )
        history.turns.append({"type": f"{kind}_call", **call, **content})
        output = history.parts(".output[]", "input_text", KINDS["responses"])
        history.turns.append({"type": f"{kind}_call_output", "call_id": "c", "output": output})
        items()
        message("assistant", "output_text")
    history.turns.append({"role": "user", "content": history.text()})
    items()


def message_turns(history: History) -> None:
    def blocks(kinds: list[str]) -> list[dict[str, Any]]:
        return history.parts(".content[]", "text", kinds)

    for _ in range(history.draw(st.integers(1, 3))):
        history.turns.append({"role": "user", "content": blocks(KINDS["messages"])})
        history.turns.append({"role": "system", "content": blocks(KINDS["messages"])})
        use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        said = [*blocks([*BLOCKS, *KINDS["messages"]]), use]
        history.turns.append({"role": "assistant", "content": said})
        inner = history.parts(".content[].content[]", "text", KINDS["messages"])
        result = {"type": "tool_result", "tool_use_id": "t", "content": inner}
        history.turns.append({"role": "user", "content": [result]})
        history.turns.append({"role": "assistant", "content": [*blocks(BLOCKS), *_said(history)]})
    history.turns.append({"role": "user", "content": history.text()})


def _said(history: History) -> list[dict[str, Any]]:
    return [{"type": "text", "text": history.text()}]


MAKERS: Final = {"chat": chat_turns, "responses": response_turns, "messages": message_turns}


@pytest.mark.parametrize("route", MAKERS)
@examples(25)
@given(data=st.data())
def test_all_that_is_not_seen_has_a_text_in_its_place(route: str, data: st.DataObject) -> None:
    history = History(route, data.draw)
    MAKERS[route](history)
    prompt, named = planned(route, history.turns)
    rest = prompt
    for text in sorted(history.shown):
        assert text in rest
        rest = rest.replace(text, "", 1)
    assert "text" not in rest
    assert "[" not in rest
    assert set(named) == history.places


def asked_about(route: str, kind: str) -> list[dict[str, Any]]:
    text = "input_text" if route == "responses" else "text"
    parts = [{"type": text, "text": "What is this?"}, {"type": kind, "source": {}}]
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": parts}]  # fmt: skip


@pytest.mark.parametrize(("route", "kind"), [(r, kind) for r in KINDS for kind in KINDS[r]])
def test_what_the_user_asks_about_is_refused(route: str, kind: str) -> None:
    turns = asked_about(route, kind)
    more: list[list[dict[str, Any]]] = [[], [{"role": "user", "content": "c"}]]
    if route == "chat":
        more += [[{"role": "system", "content": "c"}], [{"role": "assistant", "content": "It"}]]
    for end in more:
        with pytest.raises(InvalidRequestError) as refused:
            planned(route, turns + end)
        place = f"{FIELDS[route]}[2].content[1].type"
        assert refused.value.param == place
        says = f'{place}: "{kind}" is not allowed in the user\'s last turn'
        assert str(refused.value).startswith(says)
        assert '; allowed: "' in str(refused.value)
        assert ("reads no images" in str(refused.value)) == ("image" in kind or "screen" in kind)


@pytest.mark.parametrize("route", KINDS)
def test_what_has_no_type_is_refused_as_a_text_that_is_none(route: str) -> None:
    text = "input_text" if route == "responses" else "text"
    broken: list[tuple[dict[str, Any], str]] = [
        ({}, ".type"), ({"type": None}, ".type"), ({"type": 5}, ".type"), ({"type": text}, ".text"),
        ({"type": ""}, ".type"), ({"type": "a" * 65}, ".type"),
    ]  # fmt: skip
    for part, field in broken:
        turns = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}]  # fmt: skip
        with pytest.raises(InvalidRequestError) as refused:
            planned(route, turns)
        assert refused.value.param == f"{FIELDS[route]}[0].content[0]{field}"


USER: Final = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("turn", "prompt", "named"),
    [
        ({"content": None, "refusal": "No."}, "No.", []),
        ({"content": "Well.", "refusal": "No."}, "Well.\n\nNo.", []),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No.", []),
        ({"content": None, "audio": {"id": "x"}}, "[audio: not supported by this model]",
         ["messages[].audio"]),
        ({"content": None, "audio": {"id": "x", "transcript": "Hi."}}, "Hi.", ["messages[].audio"]),
        ({"content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
         '<f{"x": 1}>', []),
        ({"content": []}, "", []),
        ({"content": [{"type": "output_text", "text": "b"}]}, "b", []),
    ],
)  # fmt: skip
def test_an_assistant_s_turn_may_be_of_any_age(
    turn: dict[str, Any], prompt: str, named: list[str]
) -> None:
    turns = [USER, {"role": "assistant"} | turn, USER]
    assert planned("chat", turns) == (f"user(a)assistant({prompt})user(a)", named)


def test_a_function_s_result_is_that_of_a_tool() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}
    turns = [USER, call, {"role": "function", "name": "f", "content": "b"}]
    assert planned("chat", turns) == ("user(a)assistant(<f{}>)tool(b)", [])
    (_, made, result) = (
        turn.for_template() for turn in ChatRequest.model_validate({"messages": turns}).messages
    )
    assert made["tool_calls"][0]["id"] == result["tool_call_id"]


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_a_tool_may_return_nothing(nothing: Any) -> None:
    function = {"name": "f", "arguments": "{}"}
    chat = [
        USER,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": nothing},
    ]
    items = [
        USER,
        {"type": "function_call", "call_id": "c", **function},
        {"type": "function_call_output", "call_id": "c", "output": nothing},
    ]
    blocks = [
        USER,
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": nothing}]},
    ]  # fmt: skip
    for route, turns in (("chat", chat), ("responses", items), ("messages", blocks)):
        assert planned(route, turns) == ("user(a)assistant(<f{}>)tool()", [])


def test_items_that_are_not_seen_belong_to_the_turn_around_them() -> None:
    search, reference = {"type": "web_search_call"}, {"type": "item_reference", "id": "i"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"role": "assistant", "content": "b"}
    not_seen = "[web_search_call: not supported by this model]"
    for items in ([search, said], [thought, search, said], [search, thought, said]):
        prompt, _ = planned("responses", [USER, *items, USER])
        assert prompt == f"user(a)assistant({not_seen}\n\nb)user(a)"
    prompt, _ = planned("responses", [USER, said, search, USER])
    assert prompt == f"user(a)assistant(b\n\n{not_seen})user(a)"
    with pytest.raises(InvalidRequestError, match='"item_reference" is not allowed without') as no:
        planned("responses", [reference, search])
    assert no.value.param == "input[0].type"
    with pytest.raises(InvalidRequestError, match='"mesage" is not allowed in the user') as typo:
        planned("responses", [USER, {"type": "mesage", "role": "user", "content": "b"}])
    assert typo.value.param == "input[1].type"
