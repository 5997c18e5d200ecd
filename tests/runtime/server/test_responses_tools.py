"""Codex's tools in responses: namespaces, text, and those that nobody runs here. The engine answers
with the prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.server.responses.tools import HOSTED, input_of
from sluice_runtime.server.responses.translation import chat_request
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_openapi import document
from tests.runtime.server.test_responses import WEATHER
from tests.runtime.server.test_tools_client import calling

__all__ = ["calling"]

# The client builds its models when they are first used, in more time than a unit test has.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
}
AGENTS: Any = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Other agents.",
    "tools": [WEATHER | {"name": "spawn_agent"}, PATCH | {"name": "send"}],
}
MCP: Any = {"type": "namespace", "name": "mcp__time__", "tools": [WEATHER | {"name": "now"}]}
TEXT = '*** Begin Patch\n+ "é"\\n'


def called(name: str, arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "tools": [PATCH, AGENTS, MCP, WEATHER], **more}


def named(item: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("type", "namespace", "name", "input", "arguments")
    return tuple(item[key] for key in keys if key in item)


CALLS = [
    (called("apply_patch", {"input": TEXT}), ("custom_tool_call", "apply_patch", TEXT)),
    (
        called("multi_agent_v1__spawn_agent", {"city": "Rome"}),
        ("function_call", "multi_agent_v1", "spawn_agent", '{"city": "Rome"}'),
    ),
    (
        called("multi_agent_v1__send", {"input": "a"}),
        ("custom_tool_call", "multi_agent_v1", "send", "a"),
    ),
    (
        called("mcp__time__now", {"city": "Oslo"}),
        ("function_call", "mcp__time__", "now", '{"city": "Oslo"}'),
    ),
    (called("weather", {"city": "Kyōto"}), ("function_call", "weather", '{"city": "Kyōto"}')),
]


@pytest.mark.parametrize(("call", "expected"), CALLS)
async def test_calls_are_named_as_the_client_named_the_tools(
    calling: Server, call: str, expected: tuple[Any, ...]
) -> None:
    asked = body(f"So:\n{call}\n{CALLS[-1][0]}")
    answer = (await calling.http.post("/v1/responses", json=asked)).json()
    schema = {"$ref": "#/components/schemas/ResponseAnswer"}
    jsonschema.validate(answer, {"components": document()["components"], **schema})
    assert [named(item) for item in answer["output"][1:]] == [expected, CALLS[-1][1]]
    stream = await calling.openai.responses.create(**asked, stream=True)
    events = [event.to_dict() async for event in stream]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [named(item) for item in done[1:]] == [expected, CALLS[-1][1]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    schema = {"$ref": "#/components/schemas/ResponseEvent"}
    for event in events:
        jsonschema.validate(event, {"components": document()["components"], **schema})


async def test_text_comes_in_events_of_its_own(calling: Server) -> None:
    stream = await calling.openai.responses.create(**body(CALLS[0][0]), stream=True)
    events = [event.to_dict() async for event in stream]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:] == [
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert (events[3]["delta"], events[4]["input"]) == (TEXT, TEXT)


async def test_the_model_sees_functions_and_the_earlier_calls_of_them() -> None:
    items = [
        {"type": "message", "role": "user", "content": "q"},
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": TEXT},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        {
            "type": "function_call", "call_id": "2", "namespace": "multi_agent_v1",
            "name": "spawn_agent", "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "2", "output": "gone"},
    ]  # fmt: skip
    choice = {"type": "custom", "name": "send", "namespace": "multi_agent_v1"}
    asked = body("", tool_choice=choice) | {"input": items}
    chat = chat_request(ResponsesRequest.model_validate(asked))
    functions = [tool.function for tool in chat.tools or ()]
    assert [function.name for function in functions] == [
        "apply_patch", "multi_agent_v1__spawn_agent", "multi_agent_v1__send", "mcp__time__now",
        "weather",
    ]  # fmt: skip
    assert functions[0].arguments["required"] == ["input"]
    assert (functions[0].description or "").endswith('lark grammar:\nstart: "*** Begin Patch" LF')
    calls = [call for message in chat.messages for call in message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["apply_patch", "multi_agent_v1__spawn_agent"]
    assert json.loads(calls[0].function.arguments) == {"input": TEXT}
    assert [m.content for m in chat.messages if m.role == "tool"] == ["done", "gone"]
    assert chat.tool_choice is not None
    assert not isinstance(chat.tool_choice, str)
    assert chat.tool_choice.function.name == "multi_agent_v1__send"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a"}', "a"),
        ('{"input": "a\\nb', "a\nb"),
        ('{"inp', ""),
        ("", ""),
        ('{"input": 5}', '{"input": 5}'),
        ("[1]", "[1]"),
        ("}", "}"),
    ],
)
async def test_the_text_is_what_came_of_it(arguments: str, text: str) -> None:
    assert input_of(arguments) == text


@pytest.mark.parametrize("kind", HOSTED)
async def test_what_nobody_runs_here_is_skipped_and_named(calling: Server, kind: str) -> None:
    tool = {"type": kind}
    response = await calling.http.post("/v1/responses", json=body("a") | {"tools": [tool, WEATHER]})
    assert response.status_code == 200
    assert response.headers["x-sluice-ignored-fields"] == f"tools[].{kind}, tools"
    assert [tool["type"] for tool in response.json()["tools"]] == [kind, "function"]
    response = await calling.http.post("/v1/responses", json=body("a") | {"tools": [tool]})
    assert response.status_code == 200, "with no other tool, too"
    asked = body("a", tool_choice={"type": kind}) | {"tools": [tool, WEATHER]}
    refused = (await calling.http.post("/v1/responses", json=asked)).json()["error"]
    assert refused["param"] == "tool_choice.type"
    assert refused["message"].startswith(f'tool_choice.type: "{kind}" is not allowed; allowed: ')


async def test_strict_requests_refuse_what_nobody_runs_here(calling: Server) -> None:
    identity = calling.service.identity
    calling.service.identity = replace(identity, strict_requests=True)
    response = await calling.http.post(
        "/v1/responses", json=body("a") | {"tools": [{"type": "web_search"}]}
    )
    calling.service.identity = identity
    assert response.json()["error"]["param"] == "tools"


async def test_a_tool_that_must_be_called_is_the_grammar(calling: Server) -> None:
    for choice in ("required", {"type": "custom", "name": "apply_patch"}):
        calling.engine.heard.clear()
        await calling.http.post("/v1/responses", json=body("a", tool_choice=choice))
        (generate,) = calling.engine.of(Generate)
        assert generate.grammar is not None
    unknown = body("a", tool_choice={"type": "custom", "name": "send"})
    error = (await calling.http.post("/v1/responses", json=unknown)).json()["error"]
    assert error["param"] == "tool_choice.name"


LONG = "n" * 70


def functions(count: int, name: str = "f") -> list[dict[str, Any]]:
    return [{"type": "function", "name": f"{name}{number}"} for number in range(count)]


def namespace(name: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": tools}


def earlier(name: str, within: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "q"},
        {
            "type": "function_call", "call_id": "1", "name": name, "namespace": within,
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]  # fmt: skip


UNFIT: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [namespace("a", functions(300)), namespace("b", functions(213))]}, "tools", "513"),
    ({"tools": [namespace("c", []), namespace(LONG, functions(1, LONG))]},
     "tools[1].tools[0].name", "143 characters with its namespace; allowed: at most 128"),
    ({"tool_choice": {"type": "function", "name": "now", "namespace": "!! "}},
     "tool_choice.namespace", '"!! "'),
    ({"tool_choice": {"type": "function", "name": LONG, "namespace": LONG}},
     "tool_choice.name", "nnn"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "field", "says"), UNFIT)
async def test_tools_that_fit_no_function_are_refused_by_name(
    calling: Server, asked: dict[str, Any], field: str, says: str
) -> None:
    response = await calling.http.post("/v1/responses", json=body("a") | asked)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field), error
    assert says in error["message"]


async def test_many_functions_are_taken_beside_skipped_tools(calling: Server) -> None:
    skipped = [{"type": "web_search"}] * 20
    tools = [*skipped, namespace("a", functions(256)), namespace("b", functions(256))]
    asked = body("a") | {"tools": tools, "tool_choice": "none"}
    response = await calling.http.post("/v1/responses", json=asked)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("name", "within", "shown"),
    [("f", "b c!", "b_c___f"), (LONG, LONG, f"{LONG}__{LONG}"[:128]), ("f", "é" * 200, "_" * 128)],
)
async def test_a_call_in_the_history_is_no_obstacle(
    calling: Server, name: str, within: str, shown: str
) -> None:
    asked = body("") | {"input": earlier(name, within)}
    chat = chat_request(ResponsesRequest.model_validate(asked))
    calls = [call for message in chat.messages for call in message.tool_calls or ()]
    assert [call.function.name for call in calls] == [shown]
    response = await calling.http.post("/v1/responses", json=asked)
    assert response.status_code == 200, response.text
