"""The pieces of a streamed answer are exactly `decode` of all its ids."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.model.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer
from sluice_runtime.server.answer_text import Detokenizer
from tokenizers import decoders, models, pre_tokenizers


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
