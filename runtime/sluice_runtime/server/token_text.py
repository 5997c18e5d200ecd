"""The text of single tokens and their logprobs.

A token may be part of a character, which only its bytes and its neighbours' together spell. A
scored prompt has up to a million values; they are hidden from the garbage collector, whose runs
would otherwise block every stream.
"""

from __future__ import annotations

import msgspec

from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.wire.messages import TokenLogprob


class TokenText(msgspec.Struct, frozen=True, gc=False):
    """One token of the vocabulary."""

    token_id: int
    text: str
    """The token's text, with U+FFFD in place of bytes that are not a character; for a special token
    its name."""
    utf8: bytes | None
    """The text's bytes; None for a special token, which has no text."""

    @property
    def key(self) -> str:
        """The token's name in the completions API: `text`, or its bytes in hexadecimal if they are
        not valid text. So tokens with different bytes have different keys."""
        if self.utf8 is None or self.text.encode() == self.utf8:
            return self.text
        return "bytes:" + "".join(f"\\x{value:02x}" for value in self.utf8)


class ScoredToken(msgspec.Struct, frozen=True, gc=False):
    """A token at its position, with its logprob."""

    token: TokenText
    offset: int
    """Number of characters of text before the token."""
    logprob: float | None
    """None for the first token of a prompt, for which no model gives a probability."""
    rank: int | None
    top: tuple[tuple[TokenText, float], ...]


class TokenTexts:
    """The tokens of a vocabulary, read when first used and then cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, TokenText] = {}

    def text_of(self, token_id: int) -> TokenText:
        """The token with this id."""
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def scored(self, token_id: int, offset: int, score: TokenLogprob | None) -> ScoredToken:
        """A token with its logprobs. `score`: None for the first token of a prompt."""
        token = self.text_of(token_id)
        if score is None:
            return ScoredToken(token, offset, None, None, ())
        top = tuple([(self.text_of(other), logprob) for other, logprob in score.top])
        return ScoredToken(token, offset, score.logprob, score.rank, top)

    def _read(self, token_id: int) -> TokenText:
        utf8 = self._tokenizer.token_bytes(token_id)
        if utf8 is None:
            return TokenText(token_id, self._tokenizer.token_name(token_id), None)
        return TokenText(token_id, utf8.decode(errors="replace"), utf8)
