"""What a client is told about a body that is no JSON object."""

from __future__ import annotations

from sluice_contract.http_errors import not_json


def test_where_a_mistake_is_is_said_of_short_bodies_and_not_looked_for_in_long_ones() -> None:
    # Reading a long body a second time, only to word a refusal, would hold up every other stream.
    assert "column" in not_json(b'{"a": 1,}').message
    assert "column" not in not_json(b'{"a": "' + b"x" * 100_000).message


def test_what_is_no_object_is_shown_cut_short() -> None:
    told = not_json(b" [" + b"[]," * 100_000).message
    assert told.startswith("the body is [[],[],")
    assert len(told) < 120
