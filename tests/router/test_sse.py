"""Server-sent events in bytes: only whole ones pass, however they are cut on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.wire.private_calls import MORE_LINE
from sluice_router.sse import DONE, DataLine, WholeEvents, ends_stream, error_event, error_in


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\n\n", b"da", b"ta: [DONE]"]), max_size=30))
def test_whole_events_pass_and_nothing_else(chunks: list[bytes]) -> None:
    events = WholeEvents()
    passed = b""
    for chunk in chunks:
        whole = events.feed(chunk)
        assert not whole or whole.endswith(b"\n\n")
        passed += whole
    sent = b"".join(chunks)
    assert sent.startswith(passed)
    held_back = sent[len(passed) :]
    assert b"\n\n" not in held_back.removeprefix(b"\n")


def test_whole_chunks_are_passed_on_without_a_copy() -> None:
    chunk = b"data: 1\n\ndata: 2\n\n"
    assert WholeEvents().feed(chunk) is chunk


@pytest.mark.parametrize(
    ("chunks", "ended"),
    [
        ([], False),
        ([b"data: 1\n\n"], False),
        ([b"data: 1\n\n", DONE], True),
        ([b"data: 1\n\ndata: [DO", b"NE]\n\n"], True),
        ([b"data: 1\n\n" + error_event("", b'{"error":{}}')], True),
        ([b"data: 1\n\n", b"data: [DONE]"], False),
        ([b"event: ping\ndata: 1\n\n", b'event: message_stop\ndata: {"type":"mess'], False),
        ([b'event: message_stop\ndata: {"type":"mess', b'age_stop"}\n\n'], True),
        ([b"data: 1\n\n" + error_event("/v1/messages", b"{}")], True),
    ],
)
def test_done_or_an_error_ends_a_stream(chunks: list[bytes], ended: bool) -> None:
    events, last = WholeEvents(), b""
    for chunk in chunks:
        last = bytes(events.feed(chunk)) or last
    assert ends_stream(last) == ended


def test_an_error_event_is_known_by_its_start() -> None:
    assert error_in(error_event("", b'{"error":{}}') + DONE) == b'{"error":{}}'
    assert error_in(error_event("/v1/messages", b"{}") + DONE) == b"{}"
    assert error_in(b'data: {"id":"x"}\n\n') is None


@given(st.lists(st.integers(1, 9), max_size=30), st.lists(st.integers(1, 3), max_size=6))
def test_events_that_belong_together_pass_together(sizes: list[int], groups: list[int]) -> None:
    """`groups`: how many events each has."""
    together = [
        b"".join(MORE_LINE + b"data: %d\n\n" % n for n in range(1, count)) + b"data: x\n\n"
        for count in groups
    ]
    sent = b"".join(together)
    ends = {len(b"".join(together[:count])) for count in range(len(together) + 1)}
    events, passed, place = WholeEvents(), b"", 0
    for size in [*sizes, len(sent)]:
        passed += events.feed(sent[place : place + size])
        place += size
        assert len(passed) == max(end for end in ends if end <= place)
    assert passed == sent


@pytest.mark.parametrize("size", range(1, 60))
def test_a_line_of_data_is_taken_out_of_a_stream_however_it_is_cut(size: int) -> None:
    comments, last = b':{"a":1}\n\n:{"b":2}\n\n', b':{"last":true}\n'
    stream = comments + last + b'data: {"text":"a"}\n\n:{"c":3}\n\n' + DONE
    line = DataLine()
    parts = [line.split(stream[start : start + size]) for start in range(0, len(stream), size)]
    assert b"".join(data for _, data, _ in parts) == b'{"text":"a"}'
    left = b"".join(before + behind for before, _, behind in parts)
    assert left == comments + last + b'\n:{"c":3}\n\n' + DONE
    assert line.ended


def test_an_error_is_no_line_of_data() -> None:
    line, error = DataLine(), error_event("", b'{"error":{"code":"x"}}')
    assert line.split(error) == (error, b"", b"")
    assert not line.ended
