"""The signed header by which a router names a prefill engine."""

from __future__ import annotations

import pytest
from sluice_contract.handover import (
    HEADER_SECONDS,
    InvalidSignatureError,
    PrefillRef,
    signed_header,
    verified_header,
)

KEY = b"k" * 32
PREFILL = PrefillRef(host="10.0.0.7", port=8998, epoch="abc", name="chat-prefill-0")


def test_what_was_signed_is_read() -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0)
    assert verified_header(KEY, value, "req-1", 100.0 + HEADER_SECONDS) == PREFILL


@pytest.mark.parametrize(
    ("key", "request_id", "seconds", "says"),
    [
        (b"x" * 32, "req-1", 0.0, "not signed"),
        (KEY, "req-2", 0.0, "another request"),
        (KEY, "req-1", HEADER_SECONDS + 1, "more than 60 s ago"),
        (KEY, "req-1", -HEADER_SECONDS - 1, "more than 60 s ago"),
    ],
)
def test_others_are_refused(key: bytes, request_id: str, seconds: float, says: str) -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0)
    with pytest.raises(InvalidSignatureError, match=says):
        verified_header(key, value, request_id, 100.0 + seconds)


@pytest.mark.parametrize("value", ["", ".", "a.b", "e30=.00", "\u00e9.00"])
def test_garbage_is_refused(value: str) -> None:
    with pytest.raises(InvalidSignatureError, match="not signed"):
        verified_header(KEY, value, "req-1", 0.0)


def test_a_changed_byte_is_refused() -> None:
    value = signed_header(KEY, PREFILL, "req-1", 100.0)
    for index in range(len(value)):
        changed = value[:index] + ("A" if value[index] != "A" else "B") + value[index + 1 :]
        with pytest.raises(InvalidSignatureError):
            verified_header(KEY, changed, "req-1", 100.0)
