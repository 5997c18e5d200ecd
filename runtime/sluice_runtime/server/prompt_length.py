"""How long a text is, in tokens, without tokenising all of it.

A text that is far too long is not tokenised completely: megabytes of text would take seconds, and
hundreds of megabytes of memory.
"""

from __future__ import annotations

from typing import Final

from sluice_runtime.model.tokenizer import Tokenizer

_CHARACTERS_A_TOKEN: Final = 8
"""A text with at most this many characters for each allowed token is tokenised as a whole."""
_SLICE_CHARACTERS: Final = 16_384
_DOUBT: Final = 1.125
"""Margin for the count over slices: cutting a text may split tokens, so that the slices have more
tokens than the text."""


def surely_exceeds(tokenizer: Tokenizer, text: str, max_tokens: int) -> bool:
    """True only if `text` has more than `max_tokens`. False: it may have more or fewer."""
    if len(text) <= max_tokens * _CHARACTERS_A_TOKEN:
        return False
    counted = 0
    for begin in range(0, len(text), _SLICE_CHARACTERS):
        part = text[begin : begin + _SLICE_CHARACTERS]
        counted += len(tokenizer.encode(part, add_special_tokens=False))
        if counted > max_tokens * _DOUBT:
            return True
    return False


def end_of(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """A suffix of `text` with more than `tokens` tokens; the whole text if it has no more."""
    characters = _SLICE_CHARACTERS + tokens * _CHARACTERS_A_TOKEN
    while characters < len(text):
        end = text[-characters:]
        if len(tokenizer.encode(end, add_special_tokens=False)) > tokens * _DOUBT + 1:
            return end
        characters *= 2
    return text
