"""Tool calls through OpenAI's client, whole and streamed. The engine answers with the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jinja2
import jsonschema
import pytest
from openai import BadRequestError
from sluice_runtime.model.chat_template import ChatTemplate
from sluice_runtime.server.tools.formats import HERMES
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_openapi import document

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCE = (
    "{% if tools %}{# answer with <tool_call> #}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TWO_CALLS = "\n".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    for city in ("Rome", "Kyōto")
)


@pytest.fixture
def calling(server: Server) -> Iterator[Server]:
    """The server, with a model of a family that is known."""
    text = server.service.text
    assert text is not None
    template = ChatTemplate(jinja2.Template(SOURCE), {}, SOURCE)
    server.service.text = replace(text, template=template, tool_format=HERMES)
    yield server
    server.service.text = text


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_calls_come_beside_the_text(calling: Server) -> None:
    answer = await calling.openai.chat.completions.create(
        model=MODEL, messages=user(f"Let me see.\n{TWO_CALLS}"), tools=[WEATHER]
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = choice.message.tool_calls or []
    assert [call.function.name for call in calls] == ["weather", "weather"]  # type: ignore[union-attr]
    assert [json.loads(call.function.arguments) for call in calls] == [  # type: ignore[union-attr]
        {"city": "Rome"},
        {"city": "Kyōto"},
    ]
    assert len({call.id for call in calls}) == 2


async def test_an_answer_without_calls_is_text(calling: Server) -> None:
    answer = await calling.openai.chat.completions.create(
        model=MODEL, messages=user("Sunny <tool"), tools=[WEATHER]
    )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "Sunny <tool")
    assert choice.message.tool_calls is None


async def test_only_calls_are_no_text(calling: Server) -> None:
    answer = await calling.openai.chat.completions.create(
        model=MODEL, messages=user(TWO_CALLS), tools=[WEATHER]
    )
    assert answer.choices[0].message.content is None


async def test_a_stream_sends_each_call_once(calling: Server) -> None:
    async with calling.openai.chat.completions.stream(
        model=MODEL, messages=user(f"So: {TWO_CALLS}"), tools=[WEATHER]
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    text = "".join(event.delta for event in events if event.type == "content.delta")
    assert text == "So:"
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls or []
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Rome", "Kyōto"]


async def test_a_stream_that_begins_with_a_call_opens_without_content(calling: Server) -> None:
    for text, content in ((TWO_CALLS, None), (f"So: {TWO_CALLS}", "")):
        stream = await calling.openai.chat.completions.create(
            model=MODEL, messages=user(text), tools=[WEATHER], stream=True
        )
        role, *deltas = [chunk.choices[0].delta async for chunk in stream]
        assert (role.role, role.content, role.tool_calls) == ("assistant", content, None)
        shown = [delta.content for delta in deltas if delta.content is not None]
        assert "" not in shown
        assert "".join(shown) == ("" if content is None else "So:")


async def test_arguments_are_streamed_as_they_come(calling: Server) -> None:
    stream = await calling.openai.chat.completions.create(
        model=MODEL, messages=user(TWO_CALLS), tools=[WEATHER], stream=True
    )
    parts = [part async for chunk in stream for part in chunk.choices[0].delta.tool_calls or []]
    begun = [part for part in parts if part.id]
    assert [(part.index, part.type) for part in begun] == [(0, "function"), (1, "function")]
    assert len(parts) > 20
    told = "".join(part.function.arguments for part in parts if part.index == 0)  # type: ignore[union-attr,misc]
    assert json.loads(told) == {"city": "Rome"}


async def test_events_of_calls_match_the_document(calling: Server) -> None:
    body = {"model": MODEL, "messages": user(TWO_CALLS), "tools": [WEATHER], "stream": True}
    response = await calling.http.post("/v1/chat/completions", json=body)
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    described = {**document(), "$ref": "#/components/schemas/ChatCompletionChunk"}
    calls: list[Any] = []
    for event in map(json.loads, events):
        jsonschema.validate(event, described)
        calls += event["choices"][0]["delta"].get("tool_calls", [])
    assert {frozenset(call) for call in calls} == {
        frozenset({"index", "id", "type", "function"}),
        frozenset({"index", "function"}),
    }


async def test_a_required_call_that_is_cut_is_a_call(calling: Server) -> None:
    for most, arguments in ((51, '{"city'), (20, None)):
        answer = await calling.openai.chat.completions.create(
            model=MODEL,
            messages=user(TWO_CALLS),
            tools=[WEATHER],
            tool_choice="required",
            max_tokens=most,
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "length"
        assert not choice.message.content
        calls = choice.message.tool_calls or []
        assert [call.function.arguments for call in calls] == ([arguments] if arguments else [])  # type: ignore[union-attr]


async def test_an_answer_that_is_cut_off_has_finish_reason_length(calling: Server) -> None:
    answer = await calling.openai.chat.completions.create(
        model=MODEL, messages=user(TWO_CALLS), tools=[WEATHER], max_tokens=80
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls or []) == 1


async def test_a_message_with_calls_can_be_sent_back_as_it_was_received(calling: Server) -> None:
    sdk = calling.openai.chat.completions
    first = await sdk.create(model=MODEL, messages=user(TWO_CALLS), tools=[WEATHER])
    message = first.choices[0].message
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        for call in message.tool_calls or []
    ]
    history: list[Any] = [*user("a"), message, *results, *user("b")]
    second = await sdk.create(model=MODEL, messages=history, tools=[WEATHER])
    content = second.choices[0].message.content or ""
    assert content.count("sunny") == 2, "as text, since the template shows the user alone"
    assert (content[0], content[-1]) == ("a", "b")


LOOSE = [
    ('"arguments": {"city": "Ro\nme\t"}}\n</tool_call>', {"city": "Ro\nme\t"}),
    ('"arguments": {"city": "Rome', {"city": "Rome"}),
    *(
        pytest.param(*mended, marks=pytest.mark.full)
        for mended in (
            ("\"arguments\": {'city': NaN,}</tool_call>", {"city": None}),
            ('"arguments": "{\\"city\\": \\"Rome\\"}"}', {"city": "Rome"}),
            ('"arguments": null}</tool_call>', {}),
        )
    ),
]
"""Of these the parser's own tests have each."""


@pytest.mark.parametrize(("spelled", "arguments"), LOOSE)
async def test_on_every_route_the_arguments_are_an_object(
    calling: Server, spelled: str, arguments: Any
) -> None:
    text = f'So: <tool_call>{{"name": "weather", {spelled}'
    asked: dict[str, Any] = {"model": MODEL, "messages": user(text), "tools": [WEATHER]}
    answer = (await calling.http.post("/v1/chat/completions", json=asked)).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    (call,) = answer["message"]["tool_calls"]
    streamed = await events_of(calling, "/v1/chat/completions", asked)
    deltas = [event["choices"][0]["delta"] for event in streamed]
    parts = [part["function"]["arguments"] for d in deltas for part in d.get("tool_calls", [])]
    assert "".join(parts) == call["function"]["arguments"]
    assert json.loads("".join(parts)) == arguments
    asked = {"model": MODEL, "input": text, "tools": [{"type": "function", **WEATHER["function"]}]}
    item = (await calling.http.post("/v1/responses", json=asked)).json()["output"][-1]
    streamed = await events_of(calling, "/v1/responses", asked)
    parts = [e["delta"] for e in streamed if e["type"] == "response.function_call_arguments.delta"]
    assert json.loads("".join(parts)) == json.loads(item["arguments"]) == arguments
    function = WEATHER["function"]
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    asked = {"model": MODEL, "messages": user(text), "max_tokens": 200, "tools": [tool]}
    message = (await calling.http.post("/v1/messages", json=asked)).json()
    assert (message["stop_reason"], message["content"][-1]["input"]) == ("tool_use", arguments)
    streamed = await events_of(calling, "/v1/messages", asked)
    parts = [e["delta"].get("partial_json", "") for e in streamed if "block_delta" in e["type"]]
    assert json.loads("".join(parts) or "{}") == arguments


async def events_of(server: Server, route: str, asked: dict[str, Any]) -> list[Any]:
    response = await server.http.post(route, json=asked | {"stream": True})
    lines = [line.removeprefix("data: ") for line in response.text.split("\n")]
    return [json.loads(line) for line in lines if line.startswith("{")]


async def test_a_call_that_a_stop_string_cuts_is_not_completed(calling: Server) -> None:
    for stop, arguments, reason in (
        ("Ro", '{"city": "', "stop"),
        ("</tool_call>", '{"city": "Rome"}', "tool_calls"),
    ):
        answer = await calling.openai.chat.completions.create(
            model=MODEL, messages=user(TWO_CALLS), tools=[WEATHER], stop=stop
        )
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls or []
        assert (choice.finish_reason, call.function.arguments) == (reason, arguments)  # type: ignore[union-attr]


async def test_none_shows_no_tools_and_reads_no_calls(calling: Server) -> None:
    answer = await calling.openai.chat.completions.create(
        model=MODEL, messages=user(TWO_CALLS), tools=[WEATHER], tool_choice="none"
    )
    assert answer.choices[0].message.content == TWO_CALLS


async def test_a_required_call_is_enforced_by_a_grammar(calling: Server) -> None:
    await calling.openai.chat.completions.create(
        model=MODEL, messages=user("a"), tools=[WEATHER], tool_choice="required"
    )
    (asked,) = [message for message in calling.engine.heard if isinstance(message, Generate)]
    assert asked.grammar is not None
    assert asked.grammar.kind == "lark"


async def test_auto_is_refused_where_the_format_of_calls_is_unknown(server: Server) -> None:
    with pytest.raises(BadRequestError) as error:
        await server.openai.chat.completions.create(
            model=MODEL, messages=user("a"), tools=[WEATHER]
        )
    assert error.value.param == "tool_choice"
