"""Reasoning in responses, as items of their own. The engine answers with the prompt."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from openai.types.responses import ResponseReasoningItem

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_openapi import document
from tests.runtime.server.test_reasoning_client import THOUGHT, thinking
from tests.runtime.server.test_responses import WEATHER, without_repeats

__all__ = ["thinking"]

# The client builds its models when they are first used, in more time than a unit test has.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

REASONED = "What is 1 + 1? Thrée, nö."
CALL = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'


def reasoning_of(item: Any) -> str:
    assert isinstance(item, ResponseReasoningItem)
    assert item.content is not None
    (part,) = item.content
    return part.text


async def test_reasoning_is_an_item_before_the_message(thinking: Server) -> None:
    answer = await thinking.openai.responses.create(model=MODEL, input=THOUGHT + "Two.")
    reasoning, message = answer.output
    assert reasoning_of(reasoning) == REASONED
    assert (message.type, answer.output_text) == ("message", "Two.")
    schema = {"$ref": "#/components/schemas/ResponseAnswer"}
    body = {"model": MODEL, "input": THOUGHT + "Two."}
    whole = (await thinking.http.post("/v1/responses", json=body)).json()
    jsonschema.validate(whole, {"components": document()["components"], **schema})


async def test_reasoning_streams(thinking: Server) -> None:
    stream = await thinking.openai.responses.create(
        model=MODEL, input=THOUGHT + "Two.", stream=True
    )
    events = [event async for event in stream]
    assert without_repeats([event.type for event in events]) == [
        "response.created",
        "response.in_progress",
        *(
            kind
            for text in ("reasoning_text", "output_text")
            for kind in (
                "response.output_item.added",
                "response.content_part.added",
                f"response.{text}.delta",
                f"response.{text}.done",
                "response.content_part.done",
                "response.output_item.done",
            )
        ),
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == REASONED


async def test_an_answer_cut_inside_its_reasoning_is_reasoning_alone(thinking: Server) -> None:
    answer = await thinking.openai.responses.create(
        model=MODEL, input=THOUGHT + "Two.", max_output_tokens=19
    )
    (reasoning,) = answer.output
    assert (reasoning_of(reasoning), answer.status) == ("What is 1 +", "incomplete")


async def test_logprobs_are_those_of_the_message(thinking: Server) -> None:
    answer = await thinking.openai.responses.create(
        model=MODEL, input=THOUGHT + "Two.", include=["message.output_text.logprobs"]
    )
    message = answer.output[1]
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(one.token for one in part.logprobs) == "Two."


async def test_reasoning_goes_back_to_the_template_with_its_turn(thinking: Server) -> None:
    first = await thinking.openai.responses.create(
        model=MODEL, input=f"<think>Or</think>{CALL}", tools=[WEATHER]
    )
    reasoning, call = first.output
    assert call.type == "function_call"
    items: list[Any] = [
        {"role": "user", "content": "a"},
        reasoning,
        call,
        {"type": "function_call_output", "call_id": call.call_id, "output": "b"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": [
            {"type": "reasoning_text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"type": "reasoning", "id": "rs_3", "summary": []},
        {"role": "user", "content": "e"},
    ]  # fmt: skip
    answer = await thinking.openai.responses.create(model=MODEL, input=items)
    assert answer.output_text == "aOrbdce"
