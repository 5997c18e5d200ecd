"""Other people's clients, unchanged, against a router and an engine with the small model.

`cases` are theirs, and what the page for their users says; each client is a program of its own, in
an environment that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.clients.cases import (
    ANSWER,
    CONTEXT,
    KEY,
    LOOKED_UP,
    MODEL,
    PAGE,
    QUESTION,
    VALUE,
    run_snippet,
)
from tests.clients.environments import CLIENTS, ENVIRONMENTS, failures_of, made, serving
from tests.runtime.launch.processes import HANG_SECONDS

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("clients"), pytest.mark.timeout(600)]

MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
TOOL: Any = {
    "name": "key",
    "parameters": {
        "type": "object",
        "properties": {"name": {"enum": ["which"]}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(pydantic.BaseModel):
    """A city."""

    kind: Literal["town", "city"]
    founded: int = pydantic.Field(ge=0, le=2100)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a router before one engine."""
    with serving(tmp_path_factory.mktemp("clients")) as place:
        yield f"{place.url}/v1"


@pytest.fixture(scope="module")
def failures(url: str) -> Iterator[Mapping[str, Future[str]]]:
    """By client, while two of them run at a time."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(failures_of, name, at, url) for name, at in made().items()}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=HANG_SECONDS) as sdk:
        yield sdk


def test_openai_chats_and_completes(client: openai.OpenAI) -> None:
    chats: Any = {"model": MODEL, "messages": MESSAGES, "temperature": 0}
    chat = client.chat.completions.create(**chats)
    assert chat.choices[0].message.content == ANSWER
    with client.chat.completions.stream(**chats) as stream:
        assert stream.get_final_completion().choices[0].message.content == ANSWER
    asked: Any = {"model": MODEL, "prompt": QUESTION + "\n", "max_tokens": 64, "temperature": 0}
    assert client.completions.create(**asked).choices[0].text == ANSWER
    texts = [event.choices[0].text for event in client.completions.create(**asked, stream=True)]
    assert "".join(texts) == ANSWER
    assert [model.id for model in client.models.list()] == [MODEL]


def test_openai_responds(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": QUESTION, "temperature": 0}
    assert client.responses.create(**asked).output_text == ANSWER
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == ANSWER


def test_openai_parses(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
    assert isinstance(chat.choices[0].message.parsed, City)
    response = client.responses.parse(model=MODEL, input=QUESTION, text_format=City)
    assert isinstance(response.output_parsed, City)


def test_openai_calls_tools_in_chats(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "tools": [{"type": "function", "function": TOOL}]}
    messages: list[Any] = [{"role": "user", "content": CONTEXT}]
    given: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    chat = client.chat.completions.create(messages=messages, **asked, **given)
    message = chat.choices[0].message
    assert message.tool_calls
    (call,) = message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"name": "which"}
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": LOOKED_UP}]
    again = client.chat.completions.create(messages=messages, **asked)
    assert again.choices[0].message.content == VALUE


def test_openai_calls_tools_in_responses(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "tools": [{"type": "function", **TOOL}]}
    items: list[Any] = [{"role": "user", "content": CONTEXT}]
    given: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    response = client.responses.create(input=items, **asked, **given)
    (call,) = response.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"name": "which"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": LOOKED_UP}
    again = client.responses.create(input=[*items, *response.output, result], **asked)
    assert again.output_text == VALUE


def test_openai_is_told_what_is_not_served(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="makes no embeddings"):
        client.embeddings.create(model=MODEL, input="a")


def test_the_page_s_lines_for_openai_s_client_run(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_snippet("OpenAI", url)
    assert capsys.readouterr().out == "hello\nhello"


def test_the_page_s_lines_for_anthropic_s_client_run(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_snippet("Claude Code and Anthropic's SDK", url)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "hello"
    assert second.startswith("MessageTokensCount(input_tokens=")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_runs_unchanged(failures: Mapping[str, Future[str]], name: str) -> None:
    assert failures[name].result() == ""


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = PAGE.read_text()
    for packages in ENVIRONMENTS.values():
        for wanted in packages.wanted:
            name, version = wanted.split("==")
            assert name == "mcp" or f"{name} {version}" in page, wanted
