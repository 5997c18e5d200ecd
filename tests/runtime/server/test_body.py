"""Bodies: read within limits of size, time and number of values, before they are parsed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.wire.json_weight import MAX_VALUES, count_values
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.body import parse_request, read_body, refuse_heavy
from sluice_runtime.server.failures import MistakenError, error_response
from sluice_runtime.server.fields import MAX_BIASED_TOKENS, AnsweredRequest, RequestModel
from sluice_runtime.server.generate_request import GenerateRequest
from sluice_runtime.server.messages.request import MessagesRequest
from sluice_runtime.server.protocol import (
    MAX_PROMPTS,
    ChatRequest,
    CompletionRequest,
)
from starlette.types import Message

from tests.patience import PATIENCE_SECONDS

PROMPT_TOKENS = 1000
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text('a,[]{}:"\\\n\u2028', max_size=8)),
    lambda part: st.one_of(
        st.lists(part, max_size=4), st.dictionaries(st.text('"\\,{', max_size=3), part, max_size=4)
    ),
    max_leaves=20,
)
MANY = MAX_VALUES + 1


def request(parts: Sequence[bytes], *, ends: bool = True) -> Request:
    """A request whose body comes in `parts`; without an end it never comes as a whole."""
    coming = iter(parts)

    async def receive() -> Message:
        part = next(coming, None)
        if part is None and not ends:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    return Request({"type": "http", "headers": []}, receive)


async def test_a_body_that_comes_in_parts_is_read_as_one() -> None:
    assert await read_body(request([b"ab", b"c"]), max_bytes=3) == b"abc"


async def test_a_body_that_grows_beyond_the_cap_is_refused_before_its_end() -> None:
    with pytest.raises(MistakenError, match="allowed: 3 bytes"):
        await read_body(request([b"ab", b"cd"], ends=False), max_bytes=3)


async def test_a_body_that_does_not_come_is_a_408_that_ends_the_connection() -> None:
    with pytest.raises(MistakenError, match=r"within 0\.02 seconds") as late:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await read_body(request([b"a"], ends=False), max_bytes=3, seconds=0.02)
    response = error_response(late.value)
    assert response.status_code == 408
    assert response.headers["connection"] == "close"


def walked(value: Any) -> tuple[int, int, int, int]:
    """Texts, lists, objects and commas, keys being texts."""
    if isinstance(value, str):
        return 1, 0, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0, 0
    inside = value if isinstance(value, list) else [*value, *value.values()]
    texts, lists, objects, commas = (
        sum(column) for column in zip(*map(walked, inside), (0,) * 4, strict=True)
    )
    is_list = isinstance(value, list)
    return texts, lists + is_list, objects + (not is_list), commas + max(len(value) - 1, 0)


@given(JSON, st.booleans())
def test_counting_separators_gives_the_number_of_values(value: Any, ascii_only: bool) -> None:
    body = json.dumps({"a": value}, ensure_ascii=ascii_only).encode()
    assert count_values(body) == walked({"a": value})


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


HEAVY = [
    (CompletionRequest, body(prompt=[1] * (MANY + PROMPT_TOKENS)), "prompt"),
    (CompletionRequest, body(prompt=[""] * MANY), "prompt"),
    (CompletionRequest, body(prompt=[[]] * MANY), "prompt"),
    (ChatRequest, body(messages=[{}] * MANY), "messages"),
    (ChatRequest, body(messages=[], tools=[{}] * MANY), "tools"),
    (ChatRequest, body(messages=[], functions=[{}] * MANY), "functions"),
    (CompletionRequest, body(prompt="a", logit_bias=dict.fromkeys(range(MANY), 1)), "logit_bias"),
    (CompletionRequest, body(**dict.fromkeys(map(str, range(MANY)), 1)), None),
]


@pytest.mark.parametrize(("kind", "heavy", "field"), HEAVY)
def test_too_many_values_are_refused_by_their_field(
    kind: type[RequestModel], heavy: bytes, field: str | None
) -> None:
    with pytest.raises(InvalidRequestError, match="too many values") as error:
        refuse_heavy(kind, heavy, PROMPT_TOKENS)
    assert error.value.param == field


@pytest.mark.parametrize(
    "light",
    [
        body(prompt="[{," * MANY),
        body(prompt='\\",' * MANY),
        body(prompt=[[7] * PROMPT_TOKENS] * MAX_PROMPTS),
        body(prompt=["a,b" * 999] * MAX_PROMPTS),
        body(prompt="a", user="x" * 10**6),
    ],
)
def test_bodies_within_the_limits_are_accepted(light: bytes) -> None:
    refuse_heavy(CompletionRequest, light, PROMPT_TOKENS)


def test_a_heavy_body_that_is_no_object_is_refused_as_such() -> None:
    for heavy in (b"[" * MANY, b"[" + b'"",' * MANY, b'{"model": ' + b"[" * MANY):
        with pytest.raises(MistakenError) as error:
            refuse_heavy(CompletionRequest, heavy, PROMPT_TOKENS)
        assert error.value.mistake.code == "invalid_json"


def test_one_of_many_unknown_fields_is_named() -> None:
    unknown = {f"x-{number}": 1 for number in range(1000)}
    with pytest.raises(InvalidRequestError) as error:
        parse_request(CompletionRequest, body(prompt="a", **unknown), strict=True)
    assert error.value.param == "x-0"
    assert str(error.value).startswith("x-0: unknown field; allowed: ")
    message = {"role": "user", "content": "a", **unknown}
    with pytest.raises(InvalidRequestError) as error:
        parse_request(ChatRequest, body(messages=[message]), strict=True)
    assert error.value.param == "messages[0].x-0"


def test_biases_are_counted_before_they_are_validated() -> None:
    biases = dict.fromkeys(range(MAX_BIASED_TOKENS + 1), "none")
    with pytest.raises(InvalidRequestError, match="at most 1024 items"):
        parse_request(CompletionRequest, body(prompt="a", logit_bias=biases), strict=True)


STOPS = [f"stop {number}" for number in range(64)]
STOPPING: list[tuple[type[AnsweredRequest], dict[str, Any], str]] = [
    (CompletionRequest, {"prompt": "a"}, "stop"),
    (ChatRequest, {"messages": [{"role": "user", "content": "a"}]}, "stop"),
    (GenerateRequest, {"text": "a"}, "stop"),
    (
        MessagesRequest,
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]},
        "stop_sequences",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "name"), STOPPING)
def test_64_stop_strings_may_be_given_and_empty_ones_are_left_out(
    kind: type[AnsweredRequest], fields: dict[str, Any], name: str
) -> None:
    def stops_of(stops: object, *, strict: bool = False) -> tuple[object, list[str]]:
        body = json.dumps(fields | {name: stops}).encode()
        parsed = parse_request(kind, body, strict=strict)
        return getattr(parsed.request, name), parsed.ignored

    assert stops_of(STOPS) == (STOPS, [])
    assert stops_of(["", *STOPS, ""]) == (STOPS, [f"{name}[]"])
    assert stops_of([""]) == ([], [f"{name}[]"])
    with pytest.raises(
        InvalidRequestError, match=f"{name}: .* is not allowed; allowed: at most 64 items"
    ):
        stops_of([*STOPS, "one more"])
    with pytest.raises(InvalidRequestError, match=r"\[1\]: .* at least 1 character"):
        stops_of(["a", ""], strict=True)


def test_an_empty_text_is_no_stop_string() -> None:
    request, ignored = parse_request(
        CompletionRequest, b'{"prompt": "a", "stop": ""}', strict=False
    )
    assert (request.stops, ignored) == ([], ["stop"])
