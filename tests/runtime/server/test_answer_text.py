"""The text of a choice: the pieces are `decode` of all ids, cut at the earliest stop string."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.model.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer
from sluice_runtime.server.answer_text import AnswerText, Detokenizer, Piece, StopStrings, joined
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.wire.messages import Sampling, TokenDelta, TokenLogprob
from tokenizers import decoders, models, pre_tokenizers

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


def run(
    stops: list[str], pieces: list[str], *, kept: bool = False, ignored: int = 0
) -> tuple[str, bool]:
    """`ignored`: the first pieces, in which no stop string ends."""
    matcher = StopStrings(stops, kept=kept)
    text = "".join(
        matcher.push(piece, honoured=number >= ignored) for number, piece in enumerate(pieces)
    )
    if not matcher.stopped:
        text += matcher.finish()
    return text, matcher.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ([], ["abc"], ("abc", False)),
        (["b"], ["abc"], ("a", True)),
        (["bc"], ["ab", "cd"], ("a", True)),
        (["abcd"], ["a", "b", "c"], ("abc", False)),
        (["abc", "b"], ["abc"], ("a", True)),
        (["aab"], ["aaab"], ("a", True)),
        (["ab", "cab"], ["xcab"], ("x", True)),
        (["\n\n"], ["x\n", "\ny"], ("x", True)),
    ],
)
def test_text_ends_before_the_stop_string(
    stops: list[str], pieces: list[str], expected: tuple[str, bool]
) -> None:
    assert run(stops, pieces) == expected


class Counted(str):
    """Counts how often a text is compared with it."""

    __slots__ = ()
    compared = 0

    def startswith(self, *args: Any) -> bool:
        Counted.compared += 1
        return super().startswith(*args)


@pytest.mark.parametrize("begin", ["a" * 50 + "{}b", "ab" * 25 + "{}"])
def test_many_long_stop_strings_cost_a_comparison_each_for_a_character(begin: str) -> None:
    stops = [Counted(begin.format(chr(0x100 + number))) for number in range(64)]
    text = "ab" * 100 + "a" * 200
    Counted.compared = 0
    assert run([*stops], list(text)) == (text, False)
    assert 0 < Counted.compared <= 2 * len(stops) * len(text)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("xit EN") == "Exit "
    assert matcher.push("D and more") == ""
    assert matcher.stopped
    assert matcher.push("more") == ""


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    text=st.text("abc", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_answer_does_not_depend_on_where_text_is_cut(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    answer, found = run(stops, pieces)
    assert (answer, found) == run(stops, list(text)) == run(stops, [text])
    assert text.startswith(answer)
    assert found == any(stop in text for stop in stops)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    ignored=st.integers(0, 12),
    kept=st.booleans(),
)
def test_the_answer_is_what_a_search_of_the_whole_text_finds(
    stops: list[str], pieces: list[str], ignored: int, kept: bool
) -> None:
    text, deaf = "".join(pieces), len("".join(pieces[:ignored]))
    ends = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > deaf
    ]
    wanted = (text[: min(ends)[0 if kept else 1]], True) if ends else (text, False)
    assert run(stops, pieces, kept=kept, ignored=ignored) == wanted


def byte_level() -> FileTokenizer:
    """A byte-level BPE whose merges cross character borders."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    merges = [(a, b) for a in "âÃð" for b in alphabet[::7]]
    for a, b in merges:
        vocabulary.setdefault(a + b, len(vocabulary))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return FileTokenizer(tokenizer)


def byte_fallback() -> FileTokenizer:
    """As SentencePiece models are: metaspace words, bytes as `<0xNN>`, first space stripped."""
    words = ["<unk>", "▁a", "▁be", "c", "é", "▁"]
    vocabulary = {word: number for number, word in enumerate(words)}
    for value in range(256):
        vocabulary[f"<0x{value:02X}>"] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return FileTokenizer(tokenizer)


TOKENIZERS: dict[str, tuple[Tokenizer, int]] = {
    "bytes": (ByteTokenizer(), 259),
    "byte level": (byte_level(), 300),
    "byte fallback": (byte_fallback(), 262),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_pieces_together_are_the_whole_text(name: str, data: st.DataObject) -> None:
    tokenizer, vocabulary = TOKENIZERS[name]
    tokens = st.integers(0, 5) | st.integers(0, vocabulary - 1)  # words, or anything
    deltas = data.draw(st.lists(st.lists(tokens, max_size=4), max_size=80))
    stream = Detokenizer(tokenizer)
    text = "".join(stream.push(delta) for delta in deltas) + stream.finish()
    assert text == tokenizer.decode([token for delta in deltas for token in delta])
    assert stream.finish() == ""


@given(values=st.binary(max_size=300))
def test_any_bytes_survive(values: bytes) -> None:
    stream = Detokenizer(ByteTokenizer())
    text = "".join(stream.push([value]) for value in values) + stream.finish()
    assert text == values.decode(errors="replace")


def test_a_character_split_over_tokens_comes_whole() -> None:
    stream = Detokenizer(ByteTokenizer())
    assert [stream.push([value]) for value in "a€b".encode()] == ["a", "", "", "€", "b"]


def test_a_long_run_of_broken_characters_is_passed_on_and_decoded_in_a_small_window() -> None:
    longest = 0

    class Counting(ByteTokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return super().decode(token_ids)

    stream = Detokenizer(Counting())
    pieces = [stream.push([200]) for _ in range(1000)]
    assert len("".join(pieces)) >= 998
    assert longest <= 40


def test_special_tokens_are_not_text() -> None:
    stream = Detokenizer(ByteTokenizer())
    assert stream.push([256, 104, 258, 105]) + stream.finish() == "hi"


def test_special_tokens_may_be_shown() -> None:
    stream = Detokenizer(ByteTokenizer(), {257: "[CALLS]"})
    tokens = [256, 104, 0xE2, 0x82, 257, 0xAC, 105, 257]
    text = "".join(stream.push([token]) for token in tokens) + stream.finish()
    assert text == "h\ufffd[CALLS]\ufffdi[CALLS]"
