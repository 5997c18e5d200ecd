"""Structured output of the whole program: API process and engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.runtime.grammar.drawing import BEYOND_LIMITS
from tests.runtime.launch.processes import HANG_SECONDS, Process

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("engine")]

MANY = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}}
BEYOND = "root ::= [xy]{80} s\n" + BEYOND_LIMITS
"""Compiles, and is followed for eighty letters; then it has more alternatives than are followed."""


class City(pydantic.BaseModel):
    """What a client wants to know."""

    kind: Literal["town", "city"]
    founded: int = pydantic.Field(ge=0, le=2100)


Engine = tuple[Process, openai.OpenAI]


@pytest.fixture
def client(engine: tuple[Process, str]) -> Iterator[Engine]:
    process, url = engine
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HANG_SECONDS
    ) as sdk:
        yield process, sdk


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_the_process_that_speaks_http_checks_grammars_without_torch(client: Engine) -> None:
    process, _ = client
    maps = Path(f"/proc/{process.child('sluice_runtime.server')}/maps").read_text()
    assert "llguidance" in maps
    assert "libtorch" not in maps


def test_the_client_parses_what_it_asked_for(client: Engine) -> None:
    answer = client[1].chat.completions.parse(
        model="tiny", messages=user("Where?"), response_format=City, n=3, seed=5
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, City)


def test_a_required_tool_is_called(client: Engine) -> None:
    parameters = City.model_json_schema()
    tool: Any = {"type": "function", "function": {"name": "tell", "parameters": parameters}}
    with client[1].chat.completions.stream(
        model="tiny",
        messages=user("Where?"),
        tools=[tool],
        tool_choice="required",
        seed=7,
        parallel_tool_calls=False,
    ) as stream:
        final = stream.get_final_completion()
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.function.name == "tell"
    City.model_validate_json(call.function.arguments)


def test_a_schema_beyond_the_limits_is_a_400_and_hurts_nobody(client: Engine) -> None:
    _, sdk = client
    with ThreadPoolExecutor(1) as threads:
        bad = threads.submit(
            sdk.completions.create,
            model="tiny",
            prompt="a",
            extra_body={"structured_outputs": {"json": MANY}},
        )
        assert sdk.completions.create(model="tiny", prompt="a", max_tokens=4).choices
        yes = sdk.completions.create(
            model="tiny", prompt="a", extra_body={"guided_choice": ["yes", "no"]}
        )
        assert yes.choices[0].text in ("yes", "no")
        with pytest.raises(openai.BadRequestError, match="following it takes too much") as error:
            bad.result()
    assert error.value.param == "structured_outputs.json"


def test_a_pattern_with_a_mistake_is_a_400(client: Engine) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client[1].completions.create(
            model="tiny", prompt="a", extra_body={"guided_regex": "(a"}, stream=True
        )
    assert error.value.param == "guided_regex"
    assert "unclosed group" in str(error.value)


def test_a_grammar_that_cannot_be_followed_ends_its_request_alone(client: Engine) -> None:
    _, sdk = client

    def ask(**wanted: str) -> str:
        answer = sdk.completions.create(
            model="tiny",
            prompt="x",
            max_tokens=200,
            logit_bias={str(ord("a")): 100},
            extra_body={"structured_outputs": wanted},
        )
        return answer.choices[0].text

    with ThreadPoolExecutor() as pool:
        beside = pool.submit(ask, regex="[ac]{150}")
        with pytest.raises(openai.BadRequestError, match="following it takes too much"):
            ask(grammar=BEYOND)
        assert beside.result() == "a" * 150
    assert ask(regex="a[bc]a").startswith("a")
