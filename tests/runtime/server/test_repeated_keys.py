"""A body in which an object has a key twice is refused, and no other is."""

from __future__ import annotations

import json
from typing import Any

import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server import repeated_keys
from sluice_runtime.server.parse import parse_body, parse_request
from sluice_runtime.server.protocol import AbortRequest, ChatRequest, CompletionRequest
from sluice_runtime.server.repeated_keys import refuse_repeated_keys

TEXT = st.text('a":,[]{}\\\n€', max_size=4)
JSON = st.recursive(
    st.one_of(st.none(), st.integers(), TEXT),
    lambda part: st.one_of(st.lists(part, max_size=4), st.dictionaries(TEXT, part, max_size=4)),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("body", "key", "param"),
    [
        ('{"model": "m", "prompt": "a", "max_tokens": 1, "max_tokens": 2}', "max_tokens", True),
        ('{"model": "m", "prompt": "a:\\\\", "prompt": "a"}', "prompt", True),
        ('{"model": "m", "prompt": [1, 2], "logit_bias": {"1": 1, "1": 2}}', "1", False),
        ('{"model": "m", "prompt": [1, {"x": 1, "x": 2}]}', "x", False),
    ],
)
def test_a_key_that_is_given_again_is_refused(body: str, key: str, param: bool) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_request(CompletionRequest, body.encode())
    assert str(refused.value) == f"key '{key}' is given again; allowed: once"
    assert refused.value.param == (key if param else None)


def test_so_is_one_of_a_message_and_of_another_route() -> None:
    twice = b'{"model": "m", "messages": [{"role": "user", "role": "system", "content": "a"}]}'
    with pytest.raises(InvalidRequestError, match="key 'role' is given again"):
        parse_request(ChatRequest, twice)
    with pytest.raises(InvalidRequestError, match="key 'request_id' is given again"):
        parse_body(AbortRequest, b'{"request_id": "a", "request_id": "b"}')


@given(st.dictionaries(TEXT, JSON, max_size=4), TEXT, JSON, st.booleans())
def test_a_body_is_refused_exactly_if_a_key_is_repeated(
    value: dict[str, Any], key: str, more: Any, ascii_only: bool
) -> None:
    def refused(text: str) -> bool:
        try:
            refuse_repeated_keys(text.encode(), pydantic_core.from_json(text))
        except InvalidRequestError:
            return True
        return False

    once = json.dumps(value, ensure_ascii=ascii_only)
    assert not refused(once)
    name = json.dumps(key, ensure_ascii=ascii_only)
    again = f"{once[:-1]}{', ' if value else ''}{name}: {json.dumps(more)}}}"
    assert refused(again) == (key in value)


def test_a_body_without_such_a_key_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a long one with a function of ours in every object takes several times as long."""
    read = []
    monkeypatch.setattr(repeated_keys, "repeated_key", lambda body: read.append(body))
    body = {"a": [{"b:": ':"{\\', "c": [1, 2]}] * 3, "prompt": [[1, 2], [3]], "d": {"e": [{}]}}
    refuse_repeated_keys(json.dumps(body).encode(), body)
    assert read == []
