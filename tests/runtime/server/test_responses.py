"""`/v1/responses` through OpenAI's client. The engine answers with the prompt."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic import BaseModel
from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server, running_server
from tests.runtime.server.test_openapi import document
from tests.runtime.server.test_tools_client import TWO_CALLS, calling

__all__ = ["calling"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def without_repeats(kinds: list[str]) -> list[str]:
    return [
        kind for place, kind in enumerate(kinds) if kind != (kinds[place - 1 : place] or [""])[0]
    ]


async def test_a_response_has_its_text_and_says_what_was_asked(server: Server) -> None:
    answer = await server.openai.responses.create(
        model=MODEL, input="h€", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5,
        store=True,
    )  # fmt: skip
    assert answer.output_text == "system: Be brief.\nuser: h€\nassistant: "
    assert (answer.status, answer.model, answer.instructions) == ("completed", MODEL, "Be brief.")
    assert (answer.metadata, answer.temperature, answer.tools) == ({"a": "b"}, 0.5, [])
    assert answer.model_extra == {"store": False}
    assert answer.id.startswith("resp_")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0


async def test_items_become_turns_of_a_chat(server: Server) -> None:
    answer = await server.openai.responses.create(
        model=MODEL,
        input=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {
                "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "a", "annotations": []}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "user", "content": "q2"},
        ],
    )  # fmt: skip
    assert answer.output_text == "system: d\nuser: q\nassistant: a\nuser: q2\nassistant: "


async def test_a_stream_has_the_api_s_events_in_order(server: Server) -> None:
    stream = await server.openai.responses.create(model=MODEL, input="h€", stream=True)
    events = [event async for event in stream]
    assert without_repeats([event.type for event in events]) == [*TEXT_EVENTS, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    assert last.type == "response.completed"
    assert "".join(deltas) == last.response.output_text == "user: h€\nassistant: "
    assert len(deltas) > 2
    assert last.response.usage is not None
    schema = {"$ref": "#/components/schemas/ResponseEvent"}
    for event in events:
        value = json.loads(event.to_json())
        jsonschema.validate(value, {"components": document()["components"], **schema})


async def test_events_have_names(server: Server) -> None:
    body = {"model": MODEL, "input": "a", "stream": True}
    text = (await server.http.post("/v1/responses", json=body)).text
    *events, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    for event in events:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


async def test_an_answer_that_is_cut_off_is_incomplete(server: Server) -> None:
    asked: Any = {"model": MODEL, "input": "hello", "max_output_tokens": 3}
    answer = await server.openai.responses.create(**asked)
    assert (answer.status, answer.output_text) == ("incomplete", "use")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    stream = await server.openai.responses.create(**asked, stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_logprobs_are_told_where_they_are_included(server: Server) -> None:
    answer = await server.openai.responses.create(
        model=MODEL, input="a", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (message,) = answer.output
    assert isinstance(message, ResponseOutputMessage)
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(one.token for one in part.logprobs) == part.text
    assert {len(one.top_logprobs) for one in part.logprobs} == {2}


async def test_calls_are_items_and_go_back_with_their_outputs(calling: Server) -> None:
    asked = f"Let me see.\n{TWO_CALLS}"
    answer = await calling.openai.responses.create(model=MODEL, input=asked, tools=[WEATHER])
    message = answer.output[0]
    calls = [item for item in answer.output if isinstance(item, ResponseFunctionToolCall)]
    assert answer.output == [message, *calls]
    assert isinstance(message, ResponseOutputMessage)
    assert answer.output_text == "Let me see."
    assert [json.loads(call.arguments) for call in calls] == [
        {"city": "Rome"}, {"city": "Kyōto"},
    ]  # fmt: skip
    items: list[Any] = [
        {"role": "user", "content": asked},
        *answer.output,
        *({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
          for call in calls),
        {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    again = await calling.openai.responses.create(model=MODEL, input=items, tools=[WEATHER])
    assert again.output_text.startswith(asked.split("\n")[0])


async def test_calls_stream(calling: Server) -> None:
    stream = await calling.openai.responses.create(
        model=MODEL, input=f"Let me see.\n{TWO_CALLS}", tools=[WEATHER], stream=True
    )
    events = [event async for event in stream]
    call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    expected = [*TEXT_EVENTS, *call, *call, "response.completed"]
    assert without_repeats([event.type for event in events]) == expected
    done = events[-1]
    assert done.type == "response.completed"
    first = done.response.output[1]
    assert isinstance(first, ResponseFunctionToolCall)
    deltas = "".join(
        event.delta
        for event in events
        if event.type == "response.function_call_arguments.delta" and event.output_index == 1
    )
    assert deltas == first.arguments
    assert json.loads(deltas) == {"city": "Rome"}


async def test_a_form_becomes_the_engine_s_grammar(server: Server) -> None:
    class Answer(BaseModel):
        city: str

    # The fake engine follows no grammar: what it answers is no JSON.
    with pytest.raises(ValueError, match="JSON"):
        await server.openai.responses.parse(model=MODEL, input="a", text_format=Answer)
    (asked,) = server.engine.of(Generate)
    assert asked.grammar is not None
    assert asked.grammar.kind == "json_schema"
    assert "city" in asked.grammar.text
    assert asked.grammar.field == "text.format.schema"


async def test_an_engine_that_fails_in_a_stream_ends_it_with_response_failed(
    endpoint: str,
) -> None:
    said = ""
    async with running_server(endpoint) as server:
        server.engine.step_seconds = 0.05
        stream = await server.openai.responses.create(model=MODEL, input="a" * 200, stream=True)
        async for last in stream:
            if last.type == "response.output_text.delta":
                said += last.delta
                server.service.client.end_streams(UnavailableError("the engine leaves"))
    assert last.type == "response.failed"
    assert (last.response.status, last.response.output_text) == ("failed", said)
    assert said.startswith("u")
    assert last.response.error is not None
    assert last.response.error.message == "the engine leaves"


@pytest.mark.parametrize(
    ("asked", "param", "says"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "allowed: null"),
        ({"background": True}, "background", "allowed: false"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type", "\"reasoning\""),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type", "input_text"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": 5}]},
         "input[0].arguments", "a string"),
        ({"tools": [{"type": "hammer"}]}, "tools[0].type", '"custom", "namespace", "web_search"'),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "function"),
        ({"tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tool_choice": 1}, "tool_choice", "none, auto, required or an object that names"),
        ({"input": 5}, "input", "a string or a list of items"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "a list of text parts"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "without tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "f"}},
         "tool_choice.name", "weather"),
        ({"max_output_tokens": 2**63}, "max_output_tokens", "a whole number from 1 to"),
        ({"input": "a" * 2000}, "input", "tokens are not allowed"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema",
         "required"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name",
         "required"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
         "text.format.schema", "type"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_field_of_this_route(
    calling: Server, asked: dict[str, Any], param: str, says: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await calling.openai.post(
            "/responses", cast_to=object, body={"model": MODEL, "input": "a", **asked}
        )
    error: Any = caught.value.body
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")
    assert says in error["message"]


async def test_unknown_fields_are_named(server: Server) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}], "y": 2}]
    body = {"model": MODEL, "input": items, "z": 3, "text": {"w": 4}}
    answer = await server.http.post("/v1/responses", json=body)
    assert answer.status_code == 200
    ignored = set(answer.headers["x-sluice-ignored-fields"].split(", "))
    assert ignored == {"input[].content[].x", "input[].y", "z", "text.w"}


async def test_tools_that_a_stream_would_repeat_are_bounded() -> None:
    request = ResponsesRequest.model_validate(
        {"model": MODEL, "input": "x", "tools": [WEATHER | {"description": "x" * (1 << 20)}]}
    )
    contradiction = request.contradiction()
    assert contradiction is not None
    assert contradiction[0] == "tools"
    assert request.model_copy(update={"tools": []}).contradiction() is None
