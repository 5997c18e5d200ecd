"""Earlier turns as servers hand them out: what was cut or is empty ends no conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jinja2
import openai
import pytest
from sluice_contract.http_heads import IGNORED_FIELDS_HEADER
from sluice_runtime.model.chat_template import ChatTemplate, compiled_template
from sluice_runtime.server.tools.formats import HERMES
from sluice_runtime.server.tools.request import CalledFunction

from tests.runtime.server.chat_templates import TEMPLATES
from tests.runtime.server.conftest import MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCE = (
    "{% if tools %}{# answer with <tool_call> #}{% endif %}"
    "{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}"
)
CUT = '{"city": "Ro'
HALF = r'{"const": "\ud800"}'
"""JSON with half a surrogate pair, which is no text."""


@pytest.fixture
def calling(server: Server) -> Iterator[Server]:
    """The server, with a template that shows earlier calls; the engine answers with its prompt."""
    text, identity = server.service.text, server.service.identity
    assert text is not None
    template = ChatTemplate(jinja2.Template(SOURCE), {}, SOURCE)
    server.service.text = replace(text, template=template, tool_format=HERMES)
    yield server
    server.service.text, server.service.identity = text, identity


def called(arguments: object) -> list[Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function}
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "b"},
    ]


def strict(server: Server) -> None:
    server.service.identity = replace(server.service.identity, strict_requests=True)


LENIENT = [
    ("", "{}", None),
    (None, "{}", None),
    ({}, "{}", None),
    ({"city": "Rome"}, '{"city": "Rome"}', None),
    (CUT, "{}", "arguments"),
    ("[1]", "{}", "arguments"),
    ('{"x": 1e400}', '{"x": "1e400"}', None),
    ('{"x": [1e400, NaN, 1.5]}', '{"x": ["1e400", "NaN", 1.5]}', None),
    ("{'x': NaN}", '{"x": null}', "arguments"),
    ('{"cmd": "one\ntwo"}', r'{"cmd": "one\ntwo"}', None),
    ("{'a': 'b', }", '{"a": "b"}', None),
    ('{"a": "say "x" now", b: True}', r'{"a": "say \"x\" now", "b": true}', None),
    (r'"{\"a\": 1e400}"', '{"a": "1e400"}', None),
    (HALF, r'{"const": "\ufffd"}', None),
    ('{"a": "b"} and more', "{}", "arguments"),
    ('{"a": ' + "[" * 2000, "{}", "arguments"),
    ('{"city": "Rome"}', '{"city": "Rome"}', None),
]


@pytest.mark.parametrize(("arguments", "shown", "ignored"), LENIENT)
async def test_arguments_that_are_no_object_are_an_empty_one(
    calling: Server, arguments: object, shown: str, ignored: str | None
) -> None:
    sdk = calling.openai.chat.completions.with_raw_response
    raw = await sdk.create(model=MODEL, messages=called(arguments))
    assert raw.parse().choices[0].message.content == f"a[f{shown}]b"
    assert raw.headers.get(IGNORED_FIELDS_HEADER) == ignored


@pytest.mark.parametrize(("arguments", "shown", "ignored"), LENIENT)
async def test_responses_take_them_as_well(
    calling: Server, arguments: Any, shown: str, ignored: str | None
) -> None:
    items: list[Any] = [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "b"},
    ]
    raw = await calling.openai.responses.with_raw_response.create(model=MODEL, input=items)
    assert raw.parse().output_text == f"a[f{shown}]b"
    assert raw.headers.get(IGNORED_FIELDS_HEADER) == ignored


async def test_mending_has_a_bound_for_each_request() -> None:
    spelled = "{'a': '" + "x" * 50_000 + "'}"
    context: dict[str, Any] = {"ignored": []}
    calls = [
        CalledFunction.model_validate({"name": "f", "arguments": spelled}, context=context)
        for _ in range(4)
    ]
    mended = spelled.replace("'", '"')
    assert [call.arguments for call in calls] == [mended, mended, "{}", "{}"]
    assert context["ignored"] == ["arguments"] * 2


async def test_messages_name_numbers_that_fit_no_float(calling: Server) -> None:
    tool_use = '{"type": "tool_use", "id": "c", "name": "f", "input": {"x": [1e400], "y": 1}}'
    result = '{"type": "tool_result", "tool_use_id": "c", "content": "b"}'
    body = (
        f'{{"model": "{MODEL}", "max_tokens": 90, "messages": [{{"role": "user", "content": "a"}},'
        f'{{"role": "assistant", "content": [{tool_use}]}},'
        f'{{"role": "user", "content": [{result}]}}]}}'
    )
    response = await calling.http.post("/v1/messages", content=body)
    assert response.json()["content"][0]["text"] == 'a[f{"x": ["Infinity"], "y": 1}]b'
    assert response.headers[IGNORED_FIELDS_HEADER] == "input"
    strict(calling)
    refused = await calling.http.post("/v1/messages", content=body)
    assert refused.status_code == 400
    assert "without numbers beyond 1.8e308" in refused.json()["error"]["message"]


async def test_an_assistant_without_content_or_calls_has_said_nothing(calling: Server) -> None:
    turns: list[dict[str, Any]] = [
        {"tool_calls": []},
        {"reasoning_content": "hm"},
        {"content": "", "tool_calls": []},
    ]
    for turn in turns:
        messages: list[Any] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, **turn},
            {"role": "user", "content": "b"},
        ]
        answer = await calling.openai.chat.completions.create(model=MODEL, messages=messages)
        assert answer.choices[0].message.content == "ab"


async def test_the_answer_that_was_cut_in_a_call_can_be_sent_back(calling: Server) -> None:
    sdk = calling.openai.chat.completions
    text = '<tool_call>{"name": "f", "arguments": {"city": "Rome"}}</tool_call>'
    tool: Any = {"type": "function", "function": {"name": "f"}}
    asked: Any = {"model": MODEL, "tools": [tool]}
    first = await sdk.create(
        messages=[{"role": "user", "content": text}],
        tool_choice="required",
        max_tokens=len(text) - 20,
        **asked,
    )
    message = first.choices[0].message
    (call,) = message.tool_calls or []
    assert first.choices[0].finish_reason == "length"
    assert call.function.arguments.startswith('{"cit')
    history: list[Any] = [message, {"role": "tool", "tool_call_id": call.id, "content": "b"}]
    second = await sdk.create(messages=history, **asked)
    assert second.choices[0].message.content == "[f{}]b"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SEEN: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ]
        },
        "messages[].content[].image_url",
    ),
    "/v1/responses": (
        {
            "input": [
                {"role": "user", "content": "a"},
                {"type": "web_search_call", "id": "ws_1", "action": {"query": "a"}},
                {"role": "user", "content": "c"},
            ]
        },
        "input[].web_search_call",
    ),
}


@pytest.mark.parametrize("route", SEEN)
async def test_what_the_model_cannot_see_is_named_and_strictly_refused(
    calling: Server, route: str
) -> None:
    asked, place = SEEN[route]
    response = await calling.http.post(route, json={"model": MODEL, **asked})
    assert response.status_code == 200, response.text
    assert response.headers[IGNORED_FIELDS_HEADER] == place
    assert "not supported by this model]" in response.text
    strict(calling)
    response = await calling.http.post(route, json={"model": MODEL, **asked})
    error = response.json()["error"]
    assert (response.status_code, error["message"]) == (
        400,
        f"{place}: is not served here (strictRequests)",
    )


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        *(
            (called(arguments), "messages[1].tool_calls[0].function.arguments", says)
            for arguments, says in (
                ("", "a JSON object, as text"),
                (None, "a JSON object, as text"),
                (CUT, "a JSON object, as text"),
                ("[1]", "a JSON object, as text"),
                (HALF, "without halves of surrogate pairs"),
                ('{"a": NaN}', "without halves of surrogate pairs"),
                ('{"a": [1e400]}', "numbers beyond 1.8e308"),
                ({}, "a string"),
            )
        ),
        ([{"role": "assistant", "content": "a", "tool_calls": []}], "messages[0].tool_calls", "1"),
        ([{"role": "assistant", "content": None}], "messages[0]", "a message with content"),
    ],
)
async def test_strict_requests_refuse_them(
    calling: Server, messages: list[Any], param: str, says: str
) -> None:
    strict(calling)
    with pytest.raises(openai.BadRequestError) as refused:
        await calling.openai.chat.completions.create(model=MODEL, messages=messages)
    assert refused.value.param == param
    assert says in refused.value.message


CALLED: list[Any] = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "d"}]},
]
"""A call and its result in Anthropic's words."""
USERS: list[Any] = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": USERS}),
        ("/v1/chat/completions", {"messages": USERS, "stream": True}),
        ("/v1/responses", {"input": USERS}),
        ("/tokenize", {"messages": USERS}),
        ("/v1/messages", {"messages": [*USERS, *CALLED], "model": MODEL, "max_tokens": 9}),
        ("/v1/messages/count_tokens", {"messages": [*USERS, *CALLED], "model": MODEL}),
    ],
)
async def test_a_header_names_what_was_changed_for_the_template(
    calling: Server, path: str, body: dict[str, Any]
) -> None:
    text = calling.service.text
    assert text is not None
    calling.service.text = replace(text, template=TEMPLATES["alternating"])
    response = await calling.http.post(path, json=body)
    field = "input" if path == "/v1/responses" else "messages"
    change = "tools-as-text" if "/messages" in path else "turns-joined"
    assert response.status_code == 200
    assert response.headers[IGNORED_FIELDS_HEADER] == f"{field}[].{change}"
    strict(calling)
    refused = await calling.http.post(path, json=body)
    assert refused.status_code == 400
    assert "must alternate" in refused.json()["error"]["message"]


async def test_a_template_that_fails_is_the_server_s_error(calling: Server) -> None:
    text = calling.service.text
    assert text is not None
    failing = compiled_template("{{ 1 | tojson(unknown=2) }}", {}, "test")
    calling.service.text = replace(text, template=failing)
    response = await calling.http.post("/v1/chat/completions", json={"messages": USERS})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "template_failed")
