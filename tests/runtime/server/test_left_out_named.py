"""What a schema asks for in vain is named in a header, on every route."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from sluice_contract.http_heads import IGNORED_FIELDS_HEADER
from sluice_runtime.model.chat_template import compiled_template
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.handler import _with_changes
from sluice_runtime.server.tools.formats import (
    HERMES,
)
from sluice_runtime.wire.messages import Sampling

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_argument_schemas import BOTH, EMAIL, LEFT_OUT, TASKS

SOURCE = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def calling(server: Server) -> Iterator[Server]:
    text, identity = server.service.text, server.service.identity
    assert text is not None
    template = compiled_template(SOURCE, {}, "a test")
    server.service.text = replace(text, template=template, tool_format=HERMES)
    yield server
    server.service.text, server.service.identity = text, identity


@pytest.mark.asyncio(loop_scope="module")
async def test_every_route_names_it_in_the_header(calling: Server) -> None:
    chat = await calling.openai.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "a"}],
        tools=BOTH[1:],
        tool_choice="required",
    )  # type: ignore[call-overload]
    function: Any = {"type": "function", "name": "todo_write", "parameters": TASKS, "strict": False}
    responses = await calling.openai.responses.with_raw_response.create(
        model=MODEL, input="a", tools=[function], parallel_tool_calls=False
    )
    named = ", ".join(LEFT_OUT[3:])
    assert chat.headers[IGNORED_FIELDS_HEADER] == named
    assert responses.headers[IGNORED_FIELDS_HEADER] == named


@pytest.mark.asyncio(loop_scope="module")
async def test_a_format_that_is_not_strict_is_best_effort(calling: Server) -> None:
    schema = {"type": "object", "properties": {"to": EMAIL}, "required": ["to"]}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    async def ask() -> Any:
        return await calling.openai.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "a"}], response_format=wanted
        )

    with pytest.raises(openai.BadRequestError, match=r"schema: properties.to.pattern: look-around"):
        await ask()
    wanted["json_schema"]["strict"] = False
    place = "response_format.json_schema.schema.properties.to.pattern"
    assert (await ask()).headers[IGNORED_FIELDS_HEADER] == place
    calling.service.identity = replace(calling.service.identity, strict_requests=True)
    with pytest.raises(openai.BadRequestError, match=r"schema: properties.to.pattern: look-around"):
        await ask()


@pytest.mark.parametrize(("count", "shown"), [(30, 30), (40, 31)])
def test_beyond_what_a_header_holds_each_tool_is_named_and_the_rest_counted(
    count: int, shown: int
) -> None:
    places = [f"tools.t{tool}: properties.{name}" for tool in range(count) for name in "abc"]
    plan = ChoicePlan(0, [1], 1, Sampling(), [], False, [], left_out=places)
    names = _with_changes(["temprature"], [plan])
    tools = [f"tools.t{tool}" for tool in range(shown)]
    assert names == (["temprature", *tools] if count == shown else [*tools, "10 more"])
