"""`/v1/messages` through Anthropic's client. The engine answers with the prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anthropic
import jsonschema
import pytest
import pytest_asyncio
from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.messages.models import MessageEvent
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.chat_templates import TEMPLATES
from tests.runtime.server.claude_code import BILLING, CLAUDE_CODE, HEADERS
from tests.runtime.server.conftest import MAX_BODY_BYTES, MODEL, Server, running_server
from tests.runtime.server.test_openapi import document
from tests.runtime.server.test_reasoning_client import THOUGHT, thinking
from tests.runtime.server.test_responses import without_repeats
from tests.runtime.server.test_tools_client import TWO_CALLS, calling

__all__ = ["calling", "thinking"]

# The client builds its models when they are first used, in more time than a unit test has.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
REASONED = "What is 1 + 1? Thrée, nö."
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "cache_control": {"type": "ephemeral"},
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def claude(module_server: Server) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=module_server.url, api_key="none", max_retries=0
    ) as client:
        yield client


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def body(content: Any = "hi", **more: Any) -> Any:
    return {"model": MODEL, "max_tokens": 200, "messages": user(content), **more}


def events_in(stream: str) -> list[dict[str, Any]]:
    """Of a stream: each under its name, of the document's form, the last one `message_stop`."""
    events = []
    for text in stream.removesuffix("\n\n").split("\n\n"):
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        schema = {"$ref": "#/components/schemas/MessageEvent"}
        jsonschema.validate(event, {"components": document()["components"], **schema})
        events.append(event)
    assert events[-1] == {"type": "message_stop"}
    return events


async def test_a_message_has_text_and_usage(
    server: Server, claude: anthropic.AsyncAnthropic
) -> None:
    sampling = {"top_k": 5, "temperature": 0.5, "top_p": 0.9}
    asked: Any = body("h€", system="Be brief.", metadata={"user_id": "u"}, extra_body=sampling)
    answer = await claude.messages.create(**asked)
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == "system: Be brief.\nuser: h€\nassistant: "
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", MODEL, "end_turn")
    assert answer.id.startswith("msg_")
    assert answer.stop_sequence is None
    generate = server.engine.of(Generate)[0]
    assert (generate.sampling.top_k, generate.sampling.temperature) == (5, 0.5)
    assert generate.max_tokens == 200
    assert answer.usage.input_tokens == len(generate.prompt_ids)
    assert answer.usage.output_tokens == len(generate.prompt_ids) + 1
    again = await claude.messages.create(**asked)
    assert again.usage.cache_read_input_tokens == len(generate.prompt_ids) - 1
    assert again.usage.input_tokens == 1, "the others were cached"


async def test_a_stream_has_the_api_s_events(server: Server) -> None:
    response = await server.http.post(MESSAGES, json=body("h€", stream=True))
    events = events_in(response.text)
    assert without_repeats([event["type"] for event in events]) == [
        "message_start", "ping", "content_block_start", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    start, *_, delta, _ = events
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] == delta["usage"]["input_tokens"] > 0
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert set(MessageEvent.model_fields) >= {name for event in events for name in event}


async def test_the_client_makes_one_message_of_a_stream(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(**body("h€llo")) as stream:
        text = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "user: h€llo\nassistant: "
    whole = await claude.messages.create(**body("h€llo"))
    assert final.content[0].to_dict() == whole.content[0].to_dict()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 26)


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_ended_a_message_is_told(
    claude: anthropic.AsyncAnthropic, streamed: bool
) -> None:
    async def ended(**asked: Any) -> tuple[Any, Any, str]:
        if streamed:
            async with claude.messages.stream(**asked) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await claude.messages.create(**asked)
        return answer.stop_reason, answer.stop_sequence, answer.content[0].text

    assert await ended(**body("abc") | {"max_tokens": 6}) == ("max_tokens", None, "user: ")
    stops = ["zz", "bc", "c"]
    assert await ended(**body("abcd", stop_sequences=stops)) == ("stop_sequence", "bc", "user: a")
    assert await ended(**body("a", stop_sequences=["z"])) == (
        "end_turn",
        None,
        "user: a\nassistant: ",
    )


async def test_calls_are_blocks_behind_the_text(
    calling: Server, claude: anthropic.AsyncAnthropic
) -> None:
    asked: Any = body(f"Let me see.\n{TWO_CALLS}", tools=[WEATHER])
    answer = await claude.messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "Kyōto"}),
    ]
    assert len({call.id for call in calls}) == 2
    async with claude.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert kinds.count("input_json") > 20, "arguments are streamed as they come"
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in final.content if block.type == "tool_use"] == [
        call.input for call in calls
    ]


async def test_a_call_that_is_cut_has_what_came_of_its_input(calling: Server) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "day": "to'
    asked = body(call, tools=[WEATHER])
    for most, value in ((len(call), {"city": "Rome"}), (99, {"city": "Rome", "day": "to"})):
        answer = await calling.http.post(MESSAGES, json=asked | {"max_tokens": most})
        (block,) = answer.json()["content"]
        assert block["input"] == value


@pytest.mark.parametrize(
    ("choice", "constrained"),
    [
        ({"type": "auto"}, False),
        ({"type": "auto", "disable_parallel_tool_use": True}, True),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "weather"}, True),
        ({"type": "none"}, False),
    ],
)
async def test_a_choice_of_tools_is_the_grammar_of_the_answer(
    calling: Server, choice: dict[str, Any], constrained: bool
) -> None:
    asked = body(TWO_CALLS, tools=[WEATHER], tool_choice=choice)
    answer = (await calling.http.post(MESSAGES, json=asked)).json()
    (generate,) = calling.engine.of(Generate)
    assert (generate.grammar is not None) == constrained
    called = any(block["type"] == "tool_use" for block in answer["content"])
    assert called == (choice["type"] != "none")


async def test_a_schema_of_the_output_is_the_grammar_of_the_answer(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    await server.http.post(MESSAGES, json=body(output_config={"format": form}))
    (generate,) = server.engine.of(Generate)
    assert generate.grammar is not None
    assert generate.grammar.field == "output_config.format.schema"
    form = {"type": "json_schema", "schema": {"type": "nothing"}}
    answer = await server.http.post(MESSAGES, json=body(output_config={"format": form}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("output_config.format")


async def test_reasoning_is_a_block_of_thinking(
    thinking: Server, claude: anthropic.AsyncAnthropic
) -> None:
    asked: Any = body(THOUGHT + "Two.", thinking={"type": "enabled", "budget_tokens": 1024})
    async with claude.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert "thinking" in kinds
    assert "signature" in kinds
    whole = await claude.messages.create(**asked)
    for content in (final.content, whole.content):
        thought, said = list[Any](content)
        signed = ("thinking", REASONED, "unsigned")
        assert (thought.type, thought.thinking, thought.signature) == signed
        assert (said.type, said.text) == ("text", "Two.")
    again = await claude.messages.create(
        model=MODEL,
        max_tokens=20,
        messages=[*user("1"), {"role": "assistant", "content": whole.content}, *user("2")],
    )
    (block,) = again.content
    assert block.type == "text"
    assert block.text == "1Two." + REASONED[:15], "the template writes reasoning behind the text"


async def test_thinking_is_turned_off_where_the_template_can(thinking: Server) -> None:
    asked = body("Two.", thinking={"type": "disabled"})
    answer = (await thinking.http.post(MESSAGES, json=asked)).json()
    assert [block["type"] for block in answer["content"]] == ["text"]
    (generate,) = thinking.engine.of(Generate)
    assert bytes(generate.prompt_ids).endswith(b"<think>\n\n</think>\n\n")


async def test_tokens_are_counted_as_they_would_be_used(
    server: Server, claude: anthropic.AsyncAnthropic
) -> None:
    count = await claude.messages.count_tokens(model=MODEL, messages=user("h€"), system="s")
    assert not server.engine.heard
    answer = await claude.messages.create(**body("h€", system="s"))
    assert count.input_tokens == answer.usage.input_tokens


async def test_the_model_may_be_left_out(server: Server) -> None:
    asked = {key: value for key, value in body().items() if key != "model"}
    assert (await server.http.post(MESSAGES, json=asked)).json()["model"] == MODEL
    assert (await server.http.post(COUNT, json=asked)).status_code == 200


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (body(model="gpt"), 404, "'gpt' is not served here"),
    ({"model": MODEL, "messages": user("a")}, 400, "max_tokens: required"),
    (body([IMAGE]), 400, 'messages[0].content[0].type: "image" is not'),
    (
        body([{"type": "tool_result", "tool_use_id": "t", "content": [{"text": "a"}]}]),
        400,
        'messages[0].content[0].content[0].type: required; allowed: "text"',
    ),
    (
        body([{"type": "tool_use", "id": "t", "name": "n", "input": {}}]),
        400,
        'blocks of type "text" and "tool_result" with role user',
    ),
    (
        body() | {"messages": [*user("a"), {"role": "assistant", "content": "So"}]},
        400,
        'messages[1].role: "assistant" is not allowed at the end',
    ),
    (body("a" * 600), 400, "prompt is too long: messages: "),
    (
        body(tools=[WEATHER], tool_choice={"type": "tool", "name": "other"}),
        400,
        'tool_choice.name: "other" is not allowed; allowed: weather',
    ),
    (body(tools=[WEATHER]), 400, 'allowed: "none", "any" or a function'),
    (
        body(tools=[WEATHER, SEARCH], tool_choice={"type": "tool", "name": "web_search"}),
        400,
        'tool_choice.name: "web_search" is a tool that this server does not run',
    ),
    (body(tool_choice={"type": "tool"}), 400, 'name with type "tool"'),
    (body(mcp_servers=[{"url": "x"}]), 400, "mcp_servers: "),
    (body("x" * (MAX_BODY_BYTES + 1)), 413, "the body is too large"),
]
KINDS = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large"}


@pytest.mark.parametrize(("asked", "status", "says"), REFUSED)
async def test_what_is_refused_is_told_in_anthropic_s_form(
    server: Server, asked: dict[str, Any], status: int, says: str
) -> None:
    response = await server.http.post(MESSAGES, json=asked)
    answer = response.json()
    assert (response.status_code, answer["type"], answer["error"]["type"]) == (
        status, "error", KINDS[status],
    ), answer  # fmt: skip
    assert says in answer["error"]["message"]
    schema = {"$ref": "#/components/schemas/AnthropicErrorAnswer"}
    jsonschema.validate(answer, {"components": document()["components"], **schema})


async def test_what_the_framework_refuses_has_the_form_too(server: Server) -> None:
    response = await server.http.get(MESSAGES)
    assert (response.status_code, response.json()["type"]) == (405, "error")
    response = await server.http.post("/v1" + MESSAGES, json=body())
    assert "allowed: /v1/messages, as with a client whose base URL ends before /v1" in response.text


async def test_a_server_that_cannot_serve_now_is_overloaded(
    server: Server, claude: anthropic.AsyncAnthropic
) -> None:
    server.service.gate.closed = True
    try:
        with pytest.raises(anthropic.APIStatusError) as drained:
            await claude.messages.create(**body())
    finally:
        server.service.gate.closed = False
    assert drained.value.status_code == 529
    assert drained.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
    server.engine.refuse_with, server.engine.refusal = "full", "overloaded"
    with pytest.raises(anthropic.RateLimitError) as full:
        await claude.messages.create(**body())
    assert full.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]


async def test_an_error_in_a_stream_is_an_event_of_its_own(
    endpoint: str,
) -> None:
    async with (
        running_server(endpoint) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as claude,
    ):
        server.engine.step_seconds = 0.05
        async with claude.messages.stream(**body("once upon a time")) as stream:
            await anext(aiter(stream))
            server.service.client.end_streams(UnavailableError("the engine leaves"))
            with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
                await stream.get_final_message()


async def test_tools_that_nobody_runs_here_are_skipped_and_named(calling: Server) -> None:
    asked = body("a", tools=[SEARCH, WEATHER])
    response = await calling.http.post(MESSAGES, json=asked)
    assert response.status_code == 200
    ignored = response.headers["x-sluice-ignored-fields"].split(", ")
    assert ignored == ["tools[].max_uses", "tools[].web_search_20250305", "tools"]
    strict = replace(calling.service.identity, strict_requests=True)
    identity, calling.service.identity = calling.service.identity, strict
    response = await calling.http.post(MESSAGES, json=body("a", tools=[SEARCH | {"max_uses": 1}]))
    assert response.status_code == 400
    bare = {"type": "web_search_20250305", "name": "web_search"}
    response = await calling.http.post(MESSAGES, json=body("a", tools=[bare]))
    calling.service.identity = identity
    assert response.json()["error"]["message"] == (
        "tools[].web_search_20250305: is not served here (strictRequests)"
    )


async def test_claude_code_s_request_is_served(calling: Server) -> None:
    server = calling
    response = await server.http.post(MESSAGES, json=CLAUDE_CODE, headers=HEADERS)
    assert response.status_code == 200, response.text
    assert events_in(response.text)
    ignored = response.headers["x-sluice-ignored-fields"].split(", ")
    of_its_template = {"tools-as-text", "content", "tool_calls"}  # it shows users alone
    assert {name.removeprefix("messages[].") for name in ignored} == of_its_template | {"tools"}
    count = {key: CLAUDE_CODE[key] for key in ("model", "messages", "system", "tools")}
    counted = await server.http.post(COUNT, params={"beta": "true"}, json=count, headers=HEADERS)
    (generate,) = server.engine.of(Generate)
    assert counted.json() == {"input_tokens": len(generate.prompt_ids)}
    assert BILLING[:20].encode() not in bytes(generate.prompt_ids)


async def refusal(server: Server, asked: dict[str, Any], route: str = MESSAGES) -> tuple[Any, ...]:
    response = await server.http.post(route, json=asked)
    error = response.json().get("error", {})
    return response.status_code, error.get("param"), error.get("message")


SYSTEM = {"role": "system", "content": ""}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "a"}


@pytest.mark.parametrize("route", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"messages": [SYSTEM]}, "messages"),
        ({"messages": [*user("a"), {"role": "assistant", "content": "b"}, SYSTEM]},
         "messages[1].role"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": ""}}, "tool_choice.name"),
        ({"tools": [{"name": "f", "input_schema": {}}] * 513}, "tools"),
    ],
)  # fmt: skip
async def test_what_is_no_chat_is_refused_by_name(
    calling: Server, route: str, more: dict[str, Any], field: str
) -> None:
    status, param, _ = await refusal(calling, body() | more, route)
    assert (status, param) == (400, field)


async def test_max_tokens_fits_an_integer(server: Server) -> None:
    assert (await refusal(server, body() | {"max_tokens": 2**63}))[:2] == (400, "max_tokens")


async def test_an_image_in_the_history_is_a_text(calling: Server) -> None:
    assert calling.service.text is not None
    calling.service.text = replace(calling.service.text, template=TEMPLATES["known roles"])
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    use = {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Rome"}}
    asked = body() | {
        "messages": [
            *user([IMAGE]),
            {"role": "assistant", "content": [search, use]},
            *user([RESULT | {"content": [IMAGE]}]),
        ]
    }
    response = await calling.http.post(MESSAGES, json=asked)
    assert response.status_code == 200, response.text
    ignored = response.headers["x-sluice-ignored-fields"].split(", ")
    assert ignored == [
        "messages[].content[].image",
        "messages[].content[].server_tool_use",
        "messages[].content[].content[].image",
    ]
    strict = replace(calling.service.identity, strict_requests=True)
    identity, calling.service.identity = calling.service.identity, strict
    status, _, message = await refusal(calling, asked)
    calling.service.identity = identity
    assert (status, message) == (
        400,
        "messages[].content[].image: is not served here (strictRequests)",
    )
