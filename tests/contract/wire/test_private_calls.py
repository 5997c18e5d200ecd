"""The private form of a request, as router and engine write and read it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.wire.handover import (
    Bound,
    InvalidSignatureError,
    PrefillRef,
    signed_header,
    verified_header,
)
from sluice_contract.wire.private_calls import (
    AnswerStart,
    CallHead,
    ChoiceSoFar,
    EventComment,
    Resume,
    Score,
    comment_line,
    head_line,
    read_comment,
    signed_call,
    split_body,
    verified_call,
)

KEY = b"k" * 32
NOW = 1_800_000_000.0
START = AnswerStart("cmpl-1", 17, "ab12", [9, 9], prompt_tokens=4)
SCORE = Score(-0.25, 2, [(5, -0.125), (7, -0.25)])


@given(st.binary(max_size=60))
def test_the_clients_body_is_never_read_as_the_routers(client_body: bytes) -> None:
    head = CallHead(7, Resume(START, [ChoiceSoFar([1, 2], [SCORE, SCORE], 3, finished=True)]))
    assert split_body(head_line(head) + client_body) == (head, client_body)


def test_a_body_reads_as_the_docs_say() -> None:
    head = CallHead(7, Resume(START, [ChoiceSoFar([1, 2]), ChoiceSoFar()]))
    assert head_line(head) + b'{"n":2}' == (
        b'{"seed":7,"resume":{"start":{"id":"cmpl-1","created":17,"promptHash":"ab12",'
        b'"maxTokens":[9,9],"promptTokens":4},"choices":[{"ids":[1,2]},{}]}}\n{"n":2}'
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"", "truncated"), (b"{}\n{}", "seed"), (b'{"seed":"x"}\n{}', "seed"), (b"x\n", "malformed")],
)
def test_a_body_without_a_head_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        split_body(body)


def test_comments_are_lines_that_every_reader_of_events_skips() -> None:
    comment = EventComment(START, [(0, [5]), (1, [])], [(0, [SCORE])], [(0, 3)], [1])
    line = comment_line(comment)
    assert line.startswith(b": {")
    assert line.count(b"\n") == 1
    assert read_comment(line) == comment == read_comment(line.rstrip(b"\n"))
    assert comment_line(EventComment(c=[(0, [5])])) == b': {"c":[[0,[5]]]}\n'


def test_a_signature_is_for_one_request_and_a_minute() -> None:
    signed = signed_call(KEY, "r1", Bound("/generate", "digest"), NOW)
    assert verified_call((KEY,), signed, "r1", "/generate", NOW + 59).body_sha256 == "digest"
    for key, request_id, path, now, says in (
        (b"x" * 32, "r1", "/generate", NOW, "not signed by this service"),
        (KEY, "r2", "/generate", NOW, "another request"),
        (KEY, "r1", "/v1/completions", NOW, "another path"),
        (KEY, "r1", "/generate", NOW + 61, "more than 60 s ago"),
    ):
        with pytest.raises(InvalidSignatureError, match=f"X-Sluice-Private: .*{says}"):
            verified_call((key,), signed, request_id, path, now)


def test_no_signature_of_one_kind_is_good_for_the_other() -> None:
    prefill = signed_header(KEY, PrefillRef(host="h", port=1, epoch="e"), "r1", NOW, Bound("/", ""))
    with pytest.raises(InvalidSignatureError, match="X-Sluice-Private: not signed"):
        verified_call((KEY,), prefill, "r1", "/", NOW)
    with pytest.raises(InvalidSignatureError, match="X-Sluice-Prefill: not signed"):
        verified_header((KEY,), signed_call(KEY, "r1", Bound("/", ""), NOW), "r1", "/", NOW)


HEADER_TEXT = st.text(alphabet=st.characters(max_codepoint=255))
"""What a header's value may be for an HTTP server."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=4,
)


@given(HEADER_TEXT, st.booleans())
def test_any_header_is_either_signed_or_refused_by_name(value: str, dotted: bool) -> None:
    forged = f"{value}.{value}" if dotted else value
    with pytest.raises(InvalidSignatureError):
        verified_header((KEY,), forged, "r", "/", NOW)
    with pytest.raises(InvalidSignatureError):
        verified_call((KEY,), forged, "r", "/", NOW)


@given(st.binary(max_size=40), JSON)
def test_any_body_and_any_comment_is_read_or_refused(start: bytes, value: object) -> None:
    texts = [start] + [
        json.dumps(each).encode()
        for each in (value, {"seed": value}, {"seed": 1, "resume": value}, {"c": value})
    ]
    for text in texts:
        with contextlib.suppress(ValueError):
            split_body(text + b"\n{}")
        with contextlib.suppress(ValueError):
            read_comment(b": " + text)
