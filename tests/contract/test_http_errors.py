"""What a client is told about a body that is no JSON object."""

from __future__ import annotations

import pytest
from sluice_contract.http_errors import no_route, not_json, shown


def test_where_a_mistake_is_is_said_of_short_bodies_and_not_looked_for_in_long_ones() -> None:
    # Reading a long body a second time, only to word a refusal, would hold up every other stream.
    assert "column" in not_json(b'{"a": 1,}').message
    assert "column" not in not_json(b'{"a": "' + b"x" * 100_000).message


def test_what_is_no_object_is_shown_cut_short() -> None:
    told = not_json(b" [" + b"[]," * 100_000).message
    assert told.startswith("the body is [[],[],")
    assert len(told) < 120


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/completions/", "/v1/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/models", "/v1/models"),
    ],
)
def test_a_wrong_base_url_is_told_the_right_one(path: str, meant: str) -> None:
    message = no_route(path).message
    assert message.startswith(f"{path}: no such route; allowed: {meant}, ")
    assert message.endswith("base URL ends in /v1")


@pytest.mark.parametrize("path", ["/", "/nope", "/v1/completions/nope"])
def test_any_other_path_is_told_nothing_more(path: str) -> None:
    assert no_route(path).message == f"{path}: no such route"


def test_a_clients_text_is_shown_on_one_line() -> None:
    assert shown("é\r\n\x1b[2J\u2028\udc80") == "é\\r\\n\\x1b[2J\\u2028\\udc80"
    assert shown("x" * 61) == "x" * 60 + "…"
