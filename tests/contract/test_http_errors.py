"""What a client is told about a body that is no JSON object."""

from __future__ import annotations

import pytest
from sluice_contract.http_errors import error_for, error_object, no_route, not_json, status_for
from sluice_contract.log_lines import shown


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


def test_so_is_one_of_anthropic_s() -> None:
    message = no_route("/v1/v1/messages").message
    assert message.endswith(
        "allowed: /v1/messages, as with a client whose base URL ends before /v1"
    )


def test_an_error_has_the_form_and_the_type_of_its_route() -> None:
    error = error_object("m", "server_error", "c", "p")
    assert error_for("/v1/completions", 503, error) == error
    types = {
        400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
        404: "not_found_error", 409: "invalid_request_error", 413: "request_too_large",
        429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error",
        504: "timeout_error", 529: "overloaded_error",
    }  # fmt: skip
    for status, kind in types.items():
        own = error_for("/v1/messages", status, error)
        details = {"message": "m", "type": kind, "code": "c", "param": "p"}
        assert own == {"type": "error", "error": details}
        assert error_for("/v1/messages", status, own) == own
    assert [status_for("/v1/messages", status) for status in (502, 503)] == [502, 529]


@pytest.mark.parametrize("path", ["/", "/nope", "/v1/completions/nope"])
def test_any_other_path_is_told_nothing_more(path: str) -> None:
    assert no_route(path).message == f"{path}: no such route"


def test_a_clients_text_is_shown_on_one_line() -> None:
    assert shown("é\r\n\x1b[2J\u2028\udc80") == "é\\r\\n\\x1b[2J\\u2028\\udc80"
    assert shown("x" * 61) == "x" * 60 + "…"
