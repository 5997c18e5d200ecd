"""What single tokens are called: their bytes together are the text, in every kind of vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.model.tokenizer import ByteTokenizer
from sluice_runtime.server.token_text import TokenTexts

from tests.runtime.server.test_answer_text import TOKENIZERS


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_bytes_of_tokens_are_the_bytes_of_their_text(name: str, data: st.DataObject) -> None:
    tokenizer, vocabulary = TOKENIZERS[name]
    texts = TokenTexts(tokenizer)
    tokens = data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=20))
    joined = b"".join(texts.text_of(token).utf8 or b"" for token in tokens).decode(errors="replace")
    if "\ufffd" not in joined:
        # A decoder may drop the first space of a text, which is the token's all the same.
        assert tokenizer.decode(tokens) in (joined, joined.removeprefix(" "))


def test_special_tokens_have_names_and_no_bytes() -> None:
    token = TokenTexts(ByteTokenizer()).text_of(258)
    assert (token.text, token.utf8, token.key) == ("<eos>", None, "<eos>")


def test_parts_of_characters_have_keys_of_their_own() -> None:
    texts = TokenTexts(ByteTokenizer())
    assert [texts.text_of(value).key for value in (0x41, 0xE2, 0xE3)] == [
        "A",
        "bytes:\\xe2",
        "bytes:\\xe3",
    ]
