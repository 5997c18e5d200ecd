"""LiteLLM's cases."""

from __future__ import annotations

import json
from typing import Any

import litellm

from tests.clients.cases import ANSWER, CONTEXT, KEY, LOOKED_UP, MODEL, QUESTION, VALUE, run

PROVIDERS = ("openai", "hosted_vllm")
TOOL = {
    "type": "function",
    "function": {
        "name": "key",
        "parameters": {
            "type": "object",
            "properties": {"name": {"enum": ["which"]}},
            "required": ["name"],
        },
        "strict": True,
    },
}
FOUNDED = {"type": "integer", "minimum": 0, "maximum": 2100}
SCHEMA = {
    "type": "object",
    "properties": {"founded": FOUNDED},
    "required": ["founded"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}


def ask(url: str, content: str, provider: str = "openai", **more: Any) -> Any:
    given = {"messages": [{"role": "user", "content": content}], "max_retries": 0, **more}
    return litellm.completion(model=f"{provider}/{MODEL}", api_base=url, api_key=KEY, **given)


def completes(url: str) -> None:
    for provider in PROVIDERS:
        answer = ask(url, QUESTION, provider)
        assert answer.choices[0].message.content == ANSWER, provider
        assert answer.usage.completion_tokens > len(ANSWER)


def streams(url: str) -> None:
    for provider in PROVIDERS:
        usage = {"include_usage": True}
        chunks = list(ask(url, QUESTION, provider, stream=True, stream_options=usage))
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(texts) == ANSWER, provider
        assert chunks[-1].usage.completion_tokens > len(ANSWER)


def completes_text(url: str) -> None:
    model = f"text-completion-openai/{MODEL}"
    given = {"prompt": QUESTION + "\n", "max_tokens": 64, "api_base": url, "api_key": KEY}
    assert litellm.text_completion(model=model, **given).choices[0].text == ANSWER


def structures_output(url: str) -> None:
    answer = ask(url, "Where?", response_format=FORM)
    assert 0 <= json.loads(answer.choices[0].message.content)["founded"] <= 2100


def calls_tools(url: str) -> None:
    given: dict[str, Any] = {"tools": [TOOL], "parallel_tool_calls": False}
    message = ask(url, CONTEXT, tool_choice="required", **given).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"name": "which"}
    result = {"role": "tool", "tool_call_id": call.id, "content": LOOKED_UP}
    messages = [{"role": "user", "content": CONTEXT}, message, result]
    answer = ask(url, "", messages=messages, **given)
    assert answer.choices[0].message.content == VALUE


def uses_responses(url: str) -> None:
    given = {"model": f"openai/{MODEL}", "api_base": url, "api_key": KEY, "input": QUESTION}
    assert litellm.responses(**given).output[0].content[0].text == ANSWER
    *_, last = litellm.responses(**given, stream=True)
    assert last.type == "response.completed"


def raises_what_the_server_refuses(url: str) -> None:
    said = ""
    try:
        ask(url, QUESTION, max_tokens=0)
    except litellm.BadRequestError as error:
        said = str(error)
    assert "is not allowed; allowed: a whole number" in said


run(
    "LiteLLM",
    [
        completes, streams, completes_text, structures_output, calls_tools, uses_responses,
        raises_what_the_server_refuses,
    ],
)  # fmt: skip
