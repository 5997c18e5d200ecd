"""Every message lost, doubled or the last of its connection; aborts at any time: both sides end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.handover.messages import Chunk
from sluice_runtime.handover.ports import PageRead, PagesRead

from tests.examples import examples
from tests.runtime.handover.pair import Pair, ask
from tests.runtime.scheduler.fake_runner import answer_to

PROMPT = 40
MESSAGES = 7
"""Bootstrap, three chunks, Finished, Received, Attested."""
STAGED_MESSAGES = MESSAGES + 2
"""And `ChunkRead` of the first two."""


def on_message(number: int, pair: Pair, fault: str) -> Callable[[Any], list[Any]]:
    """Meddles with the message of this number, counted from 0."""
    seen = 0

    def meddle(message: Any) -> list[Any]:
        nonlocal seen
        seen += 1
        if seen - 1 != number:
            return [message]
        if fault == "cut":
            pair.wire.cut()
        return [message, message] if fault == "doubled" else []

    return meddle


@pytest.mark.parametrize(
    ("number", "overlap", "staged"),
    [
        *((number, overlap, False) for number in range(MESSAGES) for overlap in (False, True)),
        *((number, True, True) for number in range(STAGED_MESSAGES)),
    ],
)
@pytest.mark.parametrize("fault", ["lost", "doubled", "cut"])
def test_a_fault_at_any_message_ends_the_request_once_and_leaves_nothing(
    number: int, fault: str, overlap: bool, staged: bool
) -> None:
    pair = Pair(overlap=overlap, staged=staged)
    pair.wire.meddle = on_message(number, pair, fault)
    pair.ask(ask("a", PROMPT, 4))
    pair.run()
    assert len(pair.wire.said) > number
    end = pair.end("a")
    if end.finish_reason == "length":
        assert pair.decode.link.answer("a") == answer_to(range(PROMPT), 4)
    else:
        assert (end.refusal, pair.decode.link.answer("a")) == ("prefill_failed", [])
        assert "prefill-0" in (end.error or "")
    assert (fault == "doubled") or end.finish_reason == "error"
    pair.check_empty()
    pair.wire.meddle = lambda message: [message]
    pair.ask(ask("b", PROMPT, 4, arrival_seconds=pair.now))
    pair.turns(20)
    assert pair.decode.link.answer("b") == answer_to(range(PROMPT), 4)
    pair.check_empty()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("turn", range(14))
def test_an_abort_at_any_time_frees_everything_on_both_sides(
    turn: int, held: bool, overlap: bool
) -> None:
    """`held`: reads are not done before the abort."""
    pair = Pair(overlap=overlap)
    pair.pages.held = held
    pair.ask(ask("a", PROMPT, 4))
    pair.turns(turn)
    pair.abort("a")
    pair.turns(3)
    pair.pages.held = False
    pair.turns(10)
    assert pair.end("a").finish_reason in ("abort", "length")
    pair.check_empty()


@pytest.mark.parametrize("number", range(3))
def test_a_read_that_fails_ends_both_sides(number: int) -> None:
    pair = Pair()

    def result(read: Any) -> PagesRead:
        return PagesRead(read.number, "the peer is gone" if read.number == number else None)

    pair.pages.result = result
    pair.ask(ask("a", PROMPT, 4))
    pair.turns(20)
    assert pair.end("a").refusal == "prefill_failed"
    assert "the peer is gone" in (pair.end("a").error or "")
    pair.check_empty()


def test_a_prompt_that_is_announced_from_its_beginning_again_is_read_again() -> None:
    pair = Pair()
    chunks: list[Chunk] = []

    def again(message: Any) -> list[Any]:
        if isinstance(message, Chunk):
            chunks.append(message)
            return chunks[:2] if len(chunks) == 2 else [message]
        return [message]

    pair.wire.meddle = again
    pair.pages.held = True
    pair.ask(ask("a", PROMPT, 4))
    pair.turns(6)
    assert len(pair.pages.waiting) == 1, "the second time waits for the first"
    pair.pages.held = False
    pair.turns(15)
    assert pair.decode.link.answer("a") == answer_to(range(PROMPT), 4)
    assert pair.pages.results == 4
    pair.check_empty()


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "turn", "turn", "turn", "abort", "cut", "late", "hold",
                         "release", "lost", "doubled", "failed"]),
        st.integers(0, 1000),
    ),
    max_size=40,
)  # fmt: skip


def fails_one_of_three(odd: int, read: PageRead) -> PagesRead:
    return PagesRead(read.number, "failed" if read.number % 3 == odd else None)


@pytest.mark.parametrize("overlap", [False, True])
@given(actions=ACTIONS, prefix_cache=st.booleans(), staged=st.booleans())
@examples(40)
def test_whatever_happens_each_request_ends_once_and_nothing_leaks(
    overlap: bool, actions: list[tuple[str, int]], prefix_cache: bool, staged: bool
) -> None:
    pair = Pair(overlap=overlap, pool_tokens=128, prefix_cache=prefix_cache, staged=staged)
    asked: dict[str, list[int]] = {}
    for number, (action, choice) in enumerate(actions):
        match action:
            case "ask":
                prompt = [choice % 2] * (choice % 20) + list(range(choice % 30 + 1))
                asked[f"r{number}"] = prompt
                pair.ask(ask(f"r{number}", prompt, choice % 5 + 1, arrival_seconds=pair.now))
            case "abort" if asked:
                pair.abort(sorted(asked)[choice % len(asked)])
            case "cut":
                pair.wire.cut()
            case "late":
                pair.now += 50.0
            case "hold" | "release":
                pair.pages.held = action == "hold"
            case "lost" | "doubled":
                pair.wire.meddle = on_message(choice % 10, pair, action)
            case "failed":
                pair.pages.result = partial(fails_one_of_three, choice % 3)
        pair.turns(choice % 3)
        pair.decode.scheduler.check_integrity()
        pair.prefill.scheduler.check_integrity()
    pair.pages.held = False
    pair.run(150)
    for name, prompt in asked.items():
        if pair.end(name).finish_reason == "length":
            answer = pair.decode.link.answer(name)
            assert answer == answer_to(prompt, len(answer))
    pair.check_empty()
