"""What may pass the front door."""

from __future__ import annotations

import msgspec
import pytest
from multidict import CIMultiDict
from sluice_contract.wire.json_weight import MAX_VALUES
from sluice_router.edge import check_body, response_headers
from sluice_router.errors import BadRequestError


def test_hop_by_hop_headers_and_those_they_name_are_dropped() -> None:
    given = {
        "connection": "close, X-Private",
        "Keep-Alive": "timeout=5",
        "Transfer-Encoding": "chunked",
        "x-private": "1",
        "Server": "uvicorn",
        "Content-Type": "application/json",
        "Retry-After": "3",
    }
    passed = response_headers(CIMultiDict(given))
    assert passed == {"Content-Type": "application/json", "Retry-After": "3"}


@pytest.mark.parametrize("body", [b"{}", b'{"prompt": "bootstrap_room", "x": {"kv_a": 1}}'])
def test_only_the_names_of_a_requests_own_fields_are_looked_at(body: bytes) -> None:
    check_body(body)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b"", b'{"a": 1} x'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="the body is"):
        check_body(body)


def test_a_long_name_of_control_characters_is_shown_cut_and_escaped() -> None:
    name = "kv_\n\x1b[2J" + "x" * 1_000_000
    with pytest.raises(BadRequestError) as caught:
        check_body(msgspec.json.encode({name: 1}))
    for text in (str(caught.value), caught.value.param):
        assert text is not None
        assert text.startswith("kv_\\n\\x1b[2Jx")
        assert len(text) < 200


def test_a_body_of_very_many_keys_is_refused_before_it_is_decoded() -> None:
    many = {f"k{number}": 1 for number in range(MAX_VALUES + 1)}
    with pytest.raises(BadRequestError, match=r"^the body: holds too many values; allowed: 65536"):
        check_body(msgspec.json.encode(many))
    text = '"\\' * MAX_VALUES
    check_body(msgspec.json.encode({"prompt": text}))
