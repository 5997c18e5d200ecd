"""LangChain's cases."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

from tests.clients.cases import ANSWER, CONTEXT, KEY, LOOKED_UP, MODEL, QUESTION, VALUE, run


class City(BaseModel):
    """A city."""

    kind: Literal["town", "city"]
    founded: int = Field(ge=0, le=2100)


def key(name: Literal["which"]) -> str:
    """Tells the key."""
    return f"{name}: {LOOKED_UP}"


def chat(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=url, api_key=KEY, max_retries=0, **more)


def invokes(url: str) -> None:
    answer = chat(url).invoke(QUESTION)
    assert answer.content == ANSWER
    assert answer.usage_metadata["output_tokens"] > len(ANSWER)
    assert answer.response_metadata["finish_reason"] == "stop"


def streams(url: str) -> None:
    chunks = list(chat(url, stream_usage=True).stream(QUESTION))
    assert len(chunks) > 2
    whole = sum(chunks[1:], chunks[0])
    assert whole.content == ANSWER
    assert whole.usage_metadata["output_tokens"] > len(ANSWER)


def batches(url: str) -> None:
    answers = chat(url).batch([QUESTION] * 3)
    assert [answer.content for answer in answers] == [ANSWER] * 3


def completes(url: str) -> None:
    model = OpenAI(model=MODEL, base_url=url, api_key=KEY, max_retries=0)
    assert model.invoke(QUESTION + "\n") == ANSWER
    assert "".join(model.stream(QUESTION + "\n")) == ANSWER


def structures_output(url: str) -> None:
    for method in ("json_schema", "function_calling"):
        asked = chat(url).with_structured_output(City, method=method)
        assert isinstance(asked.invoke("Where?"), City), method


def calls_tools(url: str) -> None:
    for model in (chat(url), chat(url, use_responses_api=True)):
        asked = HumanMessage(CONTEXT)
        forced = model.bind_tools([key], tool_choice="any", parallel_tool_calls=False)
        answer = forced.invoke([asked])
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("key", {"name": "which"})
        result = ToolMessage(LOOKED_UP, tool_call_id=call["id"])
        assert model.bind_tools([key]).invoke([asked, answer, result]).text == VALUE
        chunks = list(forced.stream([asked]))
        (again,) = sum(chunks[1:], chunks[0]).tool_calls
        assert (again["name"], again["args"]) == ("key", {"name": "which"})


def uses_responses(url: str) -> None:
    model = chat(url, use_responses_api=True)
    assert model.invoke(QUESTION).text == ANSWER
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == ANSWER
    assert isinstance(model.with_structured_output(City).invoke("Where?"), City)


run(
    "LangChain",
    [invokes, streams, batches, completes, structures_output, calls_tools, uses_responses],
)
