"""What is held of an answer, whatever pieces it comes in and wherever it breaks off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.wire.private_calls import CallHead, EventComment, comment_line
from sluice_router import sse
from sluice_router.resume import Progress

from tests.router.private_engines import ENGINE_DIED, START, event, events_from
from tests.router.test_resuming import EXPECTED, folded

SEED = 2**62 + 1


def progress(grown: list[int]) -> Progress:
    return Progress(SEED, streams=True, grow=grown.append)


@given(st.lists(st.floats(0, 1), max_size=6), st.integers(1, 40))
def test_a_stream_in_any_pieces_over_any_engines_is_the_same(
    breaks: list[float], piece_bytes: int
) -> None:
    """Each engine breaks off at a share of what it would send; the last does not."""
    of_answer, sent = progress([]), b""
    for share in [*breaks, 1.0]:
        head = of_answer.head()
        assert head.seed == SEED
        stream = b"".join(events_from(head))
        stream = stream[: int(len(stream) * share)]
        whole_events = sse.WholeEvents()
        for start in range(0, len(stream), piece_bytes):
            taken = of_answer.take(whole_events.feed(stream[start : start + piece_bytes]))
            assert taken.error is None
            sent += taken.data
        if of_answer.last_seen:
            break
    assert folded(sent.removesuffix(sse.DONE) + sse.DONE) == EXPECTED


def test_what_is_held_is_told_and_forgotten() -> None:
    grown: list[int] = []
    of_answer = progress(grown)
    of_answer.take(b"".join(events_from(CallHead(SEED))))
    assert sum(grown) > 9 * 4
    of_answer.forget()
    assert of_answer.forgotten
    of_answer.take(event(EventComment(c=[(0, [5])]), b"{}"))
    assert sum(grown) < 1000


def test_events_may_have_names_and_share_a_comment() -> None:
    first = comment_line(EventComment(START, c=[(0, [5])])) + b"event: a\ndata: {}\n\n"
    last = comment_line(EventComment(c=[(0, [6])])) + b"event: c\ndata: {}\n\n"
    rest = b"event: b\ndata: {}\n\n" + last
    of_answer = progress([])
    taken = of_answer.take(first + rest + sse.DONE)
    named = b"".join(b"event: %c\ndata: {}\n\n" % name for name in b"abc")
    assert taken.data == named + sse.DONE
    resume = of_answer.head().resume
    assert resume is not None
    assert resume.choices[0].ids == [5, 6]


def test_an_error_event_is_not_passed_and_what_came_before_it_is() -> None:
    first = next(iter(events_from(CallHead(SEED))))
    data = event(EventComment(START), b'{"a":1}')
    taken = progress([]).take(first + data + ENGINE_DIED)
    assert taken.data == b'data: {"a":1}\n\n'
    assert taken.error is not None
    assert taken.error.startswith(b'{"error"')


def test_what_cannot_be_read_passes_and_nothing_is_resumed_after_it() -> None:
    for unreadable in (b": {\n", b": keep-alive\n", comment_line(EventComment(c=[(7, [1])]))):
        of_answer = progress([])
        of_answer.take(event(EventComment(START), b"{}"))
        assert of_answer.take(unreadable + b"data: {}\n\n").data == b"data: {}\n\n"
        assert of_answer.forgotten


def test_data_before_an_answer_has_begun_cannot_be_resumed() -> None:
    of_answer = progress([])
    assert of_answer.take(b"data: {}\n\n").data == b"data: {}\n\n"
    assert of_answer.forgotten
