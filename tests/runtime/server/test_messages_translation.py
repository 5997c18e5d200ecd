"""What chat a request of Anthropic's becomes."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.messages.request import CountTokensRequest, MessagesRequest
from sluice_runtime.server.messages.translation import chat_request

from tests.runtime.server.claude_code import CLAUDE_CODE, MESSAGES, TOOLS

NO_OPTIONS = frozenset[str]()


def turns(*messages: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    body = {"model": "m", "messages": list(messages), "system": system}
    chat = chat_request(CountTokensRequest.model_validate(body), NO_OPTIONS)
    return [message.for_template() for message in chat.messages]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def result(content: Any = None) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": content}


def said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {"é": 1}}
CALLS = {"role": "assistant", "content": [text("a"), text("b"), CALL]}


def test_claude_code_s_conversation_is_a_chat_s() -> None:
    chat = chat_request(MessagesRequest.model_validate(CLAUDE_CODE), frozenset({"enable_thinking"}))
    calls = [
        {"id": number, "type": "function", "function": {"name": name, "arguments": {"path": path}}}
        for number, name, path in (("c1", "Read", "/a.txt"), ("c2", "Glob", "/"))
    ]
    assert [message.for_template() for message in chat.messages] == [
        {"role": "system", "content": "You are a program's agent.\n\nBe concise."},
        {
            "role": "user",
            "content": "<system-reminder>\nToday.\n</system-reminder>\n\nWhat is in a.txt?\n\n"
            "The user opened a.txt.",
        },
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "I read it.",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one\ntwo"},
        {"role": "tool", "tool_call_id": "c2", "content": "No such tool."},
        {"role": "user", "content": "Go on.\n\nTools are slow."},
    ]
    assert [tool.function.name for tool in chat.tools or ()] == [tool["name"] for tool in TOOLS]
    assert chat.chat_template_kwargs == {"enable_thinking": False}
    assert (chat.reasoning_effort, chat.max_completion_tokens) == ("high", 100)


def test_a_conversation_that_goes_on_begins_as_before() -> None:
    conversation = [*MESSAGES, said("s"), system("t"), user("u"), system("v"), CALLS]
    conversation += [
        user([result("w")]),
        system("x"),
        said("y"),
        user("z"),
        said("end"),
        user("on"),
    ]
    behind = turns(*conversation)
    for count, message in enumerate(conversation):
        if message["role"] == "assistant":  # so far was a request
            before = turns(*conversation[:count])
            assert behind[: len(before)] == before


def test_turns_of_one_role_are_one_turn() -> None:
    assert turns(user("a"), user([text("b"), text("c")])) == [
        {"role": "user", "content": "a\n\nb\n\nc"}
    ]


def test_the_assistant_s_turns_in_a_row_are_one_turn() -> None:
    thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]}
    _, turn, _ = turns(user("q"), thought, said("x"), CALLS, CALLS, user([result("r")]))
    assert (turn["reasoning_content"], turn["content"]) == ("t", "xabab")
    assert len(turn["tool_calls"]) == 2


def test_what_an_assistant_wrote_is_joined_as_it_wrote_it() -> None:
    assert turns(user("q"), CALLS, user([result("r")]))[1]["content"] == "ab"


def test_nothing_comes_between_a_call_and_its_result() -> None:
    *_, call, outcome = turns(user("q"), CALLS, system("s"), user([result("r")]))
    assert "tool_calls" in call
    assert outcome == {"role": "tool", "tool_call_id": "c", "content": "r\n\ns"}
    *_, outcome = turns(user("q"), CALLS, user([result()]), system("s"))
    assert outcome == {"role": "tool", "tool_call_id": "c", "content": "s"}


def test_system_turns_before_all_others_are_the_system_prompt() -> None:
    assert turns(system("b"), user("q"), system=[text("a")]) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "q"},
    ]
    assert turns(system("x-anthropic-billing-header: y"), user("q")) == [
        {"role": "user", "content": "q"}
    ]


def test_stop_sequences_are_a_chat_s_stops() -> None:
    stops = [str(number) for number in range(64)]
    body = {"model": "m", "max_tokens": 1, "messages": [user("a")], "stop_sequences": stops}
    chat = chat_request(MessagesRequest.model_validate(body), NO_OPTIONS)
    assert chat.stops == stops


def test_thinking_is_told_only_to_templates_that_read_it() -> None:
    body = {"model": "m", "messages": [user("a")], "thinking": {"type": "adaptive"}}
    request = CountTokensRequest.model_validate(body)
    assert not chat_request(request, NO_OPTIONS).chat_template_kwargs
    chat = chat_request(request, frozenset({"thinking", "other"}))
    assert chat.chat_template_kwargs == {"thinking": True}
    assert chat_request(
        CountTokensRequest.model_validate(body | {"chat_template_kwargs": {"thinking": False}}),
        frozenset({"thinking"}),
    ).chat_template_kwargs == {"thinking": False}


def test_what_the_model_cannot_see_is_named_in_its_place() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    image = {"type": "image", "source": {"type": "url", "url": "x"}}
    searched = {"role": "assistant", "content": [search, CALL]}
    seen = turns(user([text("a"), image]), searched, user([result([text("r"), image])]))
    assert [turn["content"] for turn in seen] == [
        "a\n\n[image: not supported by this model]",
        "[server_tool_use: not supported by this model]",
        "r\n\n[image: not supported by this model]",
    ]


def test_what_becomes_no_chat_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="at most 4096 items") as refused:
        turns(user([result("r")] * 4097))
    assert refused.value.param == "messages"
