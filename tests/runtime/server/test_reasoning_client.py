"""Reasoning through HTTP, whole and streamed. The engine answers with the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jinja2
import jsonschema
import pytest
from sluice_runtime.model.chat_template import ChatTemplate
from sluice_runtime.server.reasoning.formats import reasoning_format_of
from sluice_runtime.server.tools.formats import HERMES

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_openapi import document
from tests.runtime.server.test_tools_client import WEATHER, user

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCE = (
    "{% for m in messages %}{{ m.content }}{{ m.reasoning_content }}{% endfor %}"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
THOUGHT = "<think>\nWhat is 1 + 1? Thrée, nö.\n</think>\n\n"
FORM = {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "object"}}}


@pytest.fixture
def thinking(server: Server) -> Iterator[Server]:
    """The server, with a model that thinks."""
    text = server.service.text
    assert text is not None
    options = frozenset({"enable_thinking"})
    template = ChatTemplate(jinja2.Template(SOURCE), {}, SOURCE, options=options)
    server.service.text = replace(
        text, template=template, tool_format=HERMES, reasoning_form=reasoning_format_of(SOURCE)
    )
    yield server
    server.service.text = text


async def message(server: Server, content: str, **fields: Any) -> dict[str, Any]:
    """Of an answer that is not streamed."""
    body = {"model": MODEL, "messages": user(content), **fields}
    answer = (await server.http.post("/v1/chat/completions", json=body)).json()
    jsonschema.validate(answer, {**document(), "$ref": "#/components/schemas/ChatCompletion"})
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


async def test_reasoning_comes_beside_the_answer(thinking: Server) -> None:
    body = {"model": MODEL, "messages": user(THOUGHT + "Two.")}
    answer = (await thinking.http.post("/v1/chat/completions", json=body)).json()
    found = answer["choices"][0]["message"]
    assert found["reasoning_content"] == "What is 1 + 1? Thrée, nö."
    assert found["reasoning"] == found["reasoning_content"]
    assert found["content"] == "Two."
    # Of a byte each.
    tokens = len(THOUGHT.rstrip().encode())
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}


async def test_an_answer_without_reasoning_has_no_such_field(thinking: Server) -> None:
    found = await message(thinking, "Two.")
    assert {"reasoning", "reasoning_content"}.isdisjoint(found)
    assert found["content"] == "Two."


async def test_an_answer_cut_inside_its_reasoning_has_no_content(thinking: Server) -> None:
    found = await message(thinking, THOUGHT + "Two.", max_tokens=19)
    assert found["reasoning_content"] == "What is 1 +"
    assert found["content"] is None


async def test_a_stream_tells_reasoning_and_answer_apart(thinking: Server) -> None:
    body = {"model": MODEL, "messages": user(THOUGHT + "Two."), "stream": True}
    response = await thinking.http.post("/v1/chat/completions", json=body)
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    described = {**document(), "$ref": "#/components/schemas/ChatCompletionChunk"}
    deltas = []
    for event in map(json.loads, events):
        jsonschema.validate(event, described)
        deltas.append(event["choices"][0]["delta"])
    told = [delta.get("reasoning_content", "") for delta in deltas]
    assert "".join(told) == "What is 1 + 1? Thrée, nö."
    assert sum(map(bool, told)) > 5
    assert [delta.get("reasoning", "") for delta in deltas] == told
    assert "".join(delta.get("content", "") for delta in deltas) == "Two."


async def test_calls_are_read_behind_the_reasoning_only(thinking: Server) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    found = await message(thinking, f"<think>Or {call}</think>{call}", tools=[WEATHER])
    assert found["reasoning_content"] == f"Or {call}"
    assert len(found["tool_calls"]) == 1
    assert found["content"] is None


async def test_a_template_that_ends_the_reasoning_leaves_none(thinking: Server) -> None:
    asked = {"chat_template_kwargs": {"enable_thinking": False}}
    found = await message(thinking, "<think>a", **asked)
    assert found["content"] == "<think>a<think>\n\n</think>\n\n"


async def test_an_answer_in_a_form_is_no_reasoning(thinking: Server) -> None:
    found = await message(thinking, THOUGHT + "{}", response_format=FORM)
    assert found["content"] == THOUGHT + "{}"


@pytest.mark.parametrize(
    "reasoning", [{"reasoning_content": "c"}, {"reasoning": "c", "reasoning_content": "c"},
                  {"reasoning": "c"}]
)  # fmt: skip
async def test_the_reasoning_of_earlier_turns_reaches_the_template(
    thinking: Server, reasoning: dict[str, str]
) -> None:
    turn = {"role": "assistant", "content": "b", **reasoning}
    messages = [*user("a"), turn, *user("d")]
    body = {"model": MODEL, "messages": messages}
    answer = (await thinking.http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["content"] == "abcd"


@pytest.mark.parametrize(
    ("begun", "reasoning"),
    [("<think>a", True), ("<think>a</think>b", False), ("b", False), ("", False)],
)
async def test_an_answer_that_goes_on_is_reasoning_where_that_is_open(
    thinking: Server, begun: str, reasoning: bool
) -> None:
    messages = [*user("x</think>y"), {"role": "assistant", "content": begun}]
    asked = {"model": MODEL, "messages": messages, "continue_final_message": True}
    answer = (await thinking.http.post("/v1/chat/completions", json=asked)).json()
    found = answer["choices"][0]["message"]
    prompt = f"x</think>y{begun}"  # with which the engine answers
    if reasoning:
        assert (found["reasoning"], found["content"]) == ("x", f"y{begun}")
    else:
        assert found["content"] == prompt


async def test_reasoning_is_an_item_of_a_response(thinking: Server) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": THOUGHT + "Two."}
    whole = await thinking.openai.responses.create(**asked)
    reasoning, answer = whole.output
    assert reasoning.type == "reasoning"
    assert answer.type == "message"
    assert [part.text for part in reasoning.content or ()] == ["What is 1 + 1? Thrée, nö."]
    assert whole.output_text == "Two."
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == len(THOUGHT.rstrip().encode())
    events = [event async for event in await thinking.openai.responses.create(**asked, stream=True)]
    told = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(told) == "What is 1 + 1? Thrée, nö."
    assert events[-1].type == "response.completed"
    items = [item.model_dump(exclude={"id"}) for item in events[-1].response.output]
    assert items == [item.model_dump(exclude={"id"}) for item in whole.output]
