"""One choice's text, tokens and ending do not depend on how the engine's tokens arrive."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.model.tokenizer import ByteTokenizer
from sluice_runtime.server.answer_text import AnswerText, Piece, joined
from sluice_runtime.server.prompts import ChoicePlan
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.wire.messages import Sampling, TokenDelta, TokenLogprob

EOS = 258
TOKENIZER = ByteTokenizer()
TEXTS = TokenTexts(TOKENIZER)


def plan_of(stops: list[str], **fields: Any) -> ChoicePlan:
    sampling = Sampling()
    return ChoicePlan(0, [1], 100, sampling, [EOS], False, stops, logprobs=0, **fields)


def answer(
    plan: ChoicePlan, tokens: list[int], borders: list[int], reason: Literal["stop", "length"]
) -> Piece:
    """The whole answer; what comes after its end is not asked for."""
    text, pieces = AnswerText(plan, TOKENIZER, TEXTS), []
    for begin, end in pairwise([0, *sorted(borders), len(tokens)]):
        part = tokens[begin:end]
        scores = tuple(TokenLogprob(token, -float(token), 1, []) for token in part)
        ended = reason if end == len(tokens) else None
        pieces.append(text.push(TokenDelta("r", tuple(part), ended, logprobs=scores)))
        if pieces[-1].finish_reason is not None:
            return joined(pieces)
    raise AssertionError("the answer does not end")


@given(
    text=st.text("ab€", min_size=1, max_size=20),
    stops=st.lists(st.text("ab€", min_size=1, max_size=3), max_size=4),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    min_tokens=st.integers(0, 12),
    ends=st.booleans(),
    kept=st.booleans(),
)
def test_an_answer_is_the_same_however_it_arrives(
    text: str, stops: list[str], cuts: list[int], min_tokens: int, ends: bool, kept: bool
) -> None:
    tokens = [*text.encode(), *([EOS] if ends else [])]
    plan = plan_of(stops, min_tokens=min_tokens, keeps_stop=kept)
    borders = [cut for cut in cuts if cut < len(tokens)]
    one = answer(plan, tokens, borders, "stop" if ends else "length")
    assert one == answer(plan, tokens, list(range(1, len(tokens))), "stop" if ends else "length")

    hits = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and len(text[: start + len(stop)].encode()) > min_tokens
    ]
    if hits:
        end, start = min(hits)
        assert (one.text, one.finish_reason) == (text[: end if kept else start], "stop")
        assert one.tokens == len(text[:end].encode())
    else:
        assert (one.text, one.finish_reason) == (text, "stop" if ends else "length")
        assert one.tokens == len(tokens)
    told = [token for token in one.token_ids if token != EOS]
    assert bytes(told).decode() == one.text
    assert one.scores is not None
    assert [score.token.token_id for score in one.scores] == list(one.token_ids)
    assert [score.logprob for score in one.scores] == [-float(t) for t in one.token_ids]
    offsets = {score.offset for score in one.scores if score.token.token_id != EOS}
    assert offsets == set(range(len(one.text)))


def test_a_stop_string_wins_over_the_end_token_and_that_over_the_length() -> None:
    assert answer(plan_of(["b"]), [97, 98, EOS], [], "stop").text == "a"
    assert answer(plan_of(["b"]), [97, 98], [], "length").finish_reason == "stop"
    assert answer(plan_of([]), [97, EOS], [], "stop").finish_reason == "stop"
