"""Structured output of the whole program: API process, engine and compile process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.runtime.launch.processes import (
    HANG_SECONDS,
    Process,
    command_line,
    descendants,
    until,
)

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("engine")]

NEVER_DONE = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string"} for i in range(1500)},
}
ENGINE = "sluice_runtime.engine"
WORKER = "sluice_runtime.grammar.compile.worker"
MASK_WORKER = "sluice_runtime.grammar.follow.mask_worker"
ENDLESS = "[xy]{80}(a{0,60}){0,60}b"
"""Compiles at once, and is followed for eighty letters; then one mask takes minutes."""


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


def running(process: Process, module: str) -> set[int]:
    return {pid for pid in descendants(process.popen.pid) if module in command_line(pid)}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_one_process_to_compile_and_one_to_follow_start_with_the_engine(client: Engine) -> None:
    process, _ = client
    until(lambda: bool(running(process, MASK_WORKER)))
    assert len(running(process, WORKER)) == len(running(process, MASK_WORKER)) == 1
    assert "libxgrammar" not in Path(f"/proc/{process.child(ENGINE)}/maps").read_text()


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


def test_a_grammar_that_never_compiles_is_a_400_and_hurts_nobody(
    client: Engine,
) -> None:
    process, sdk = client
    with ThreadPoolExecutor(1) as threads:
        bad = threads.submit(
            sdk.completions.create,
            model="tiny",
            prompt="a",
            extra_body={"structured_outputs": {"json": NEVER_DONE}},
        )
        until(lambda: _waits(process, sdk))
        assert sdk.completions.create(model="tiny", prompt="a", max_tokens=4).choices
        assert not bad.done()
        yes = sdk.completions.create(
            model="tiny", prompt="a", extra_body={"guided_choice": ["yes", "no"]}
        )
        assert yes.choices[0].text in ("yes", "no")
        with pytest.raises(openai.BadRequestError) as error:
            bad.result()
    assert error.value.param == "structured_outputs.json"
    assert "compiling it takes" in str(error.value)
    again = sdk.completions.create(model="tiny", prompt="a", extra_body={"guided_regex": "[xyz]"})
    assert again.choices[0].text in "xyz"


def _waits(process: Process, sdk: openai.OpenAI) -> bool:
    response = sdk._client.get(str(sdk.base_url).replace("/v1/", "/load"))
    return bool(json.loads(response.content)["queuedRequests"])


def test_a_pattern_with_a_mistake_is_a_400(client: Engine) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client[1].completions.create(
            model="tiny", prompt="a", extra_body={"guided_regex": "(a"}, stream=True
        )
    assert error.value.param == "guided_regex"
    assert "parenthesis" in str(error.value)


def test_a_grammar_that_cannot_be_followed_ends_its_request_alone(client: Engine) -> None:
    process, sdk = client
    before = running(process, MASK_WORKER)

    def ask(pattern: str) -> str:
        answer = sdk.completions.create(
            model="tiny",
            prompt="x",
            max_tokens=200,
            logit_bias={str(ord("a")): 100},
            extra_body={"structured_outputs": {"regex": pattern}},
        )
        return answer.choices[0].text

    with ThreadPoolExecutor() as pool:
        beside = pool.submit(ask, "[ac]{150}")
        with pytest.raises(openai.BadRequestError, match="following it takes more than"):
            ask(ENDLESS)
        assert beside.result() == "a" * 150
    until(lambda: not running(process, MASK_WORKER) & before)
    assert ask("a[bc]a").startswith("a")
