"""Finds out soon that a text is far too long: tokenising megabytes takes seconds.

Knows no request.
"""

from __future__ import annotations

from typing import Final

from sluice_runtime.tokenizer import Tokenizer

_CHARACTERS_A_TOKEN: Final = 8
"""A text of fewer is encoded as a whole at once; others are looked at slice by slice first."""
_SLICE_CHARACTERS: Final = 16_384
_DOUBT: Final = 1.125
"""A cut may split a token in two, so the slices of a text have more tokens than the text."""


def surely_exceeds(tokenizer: Tokenizer, text: str, most_tokens: int) -> bool:
    """Whether `text` has more than `most_tokens`; False may mean that it was not looked into."""
    if len(text) <= most_tokens * _CHARACTERS_A_TOKEN:
        return False
    counted = 0
    for begin in range(0, len(text), _SLICE_CHARACTERS):
        part = text[begin : begin + _SLICE_CHARACTERS]
        counted += len(tokenizer.encode(part, add_special_tokens=False))
        if counted > most_tokens * _DOUBT:
            return True
    return False
