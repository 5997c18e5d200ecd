"""The text of single tokens and their logprobs.

A token may be part of a character: its bytes joined with its neighbours' are the text. A scored
prompt has up to a million values; they are hidden from the garbage collector, whose passes
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
    """A special token's name; U+FFFD in place of bytes that are no character."""
    utf8: bytes | None
    """None for special tokens: they are no text."""

    @property
    def key(self) -> str:
        """`text`, or its bytes in hexadecimal if they are no valid text, so that different tokens
        have different keys, as in the completions API."""
        if self.utf8 is None or self.text.encode() == self.utf8:
            return self.text
        return "bytes:" + "".join(f"\\x{value:02x}" for value in self.utf8)


class ScoredToken(msgspec.Struct, frozen=True, gc=False):
    """A token at its position, with its logprob."""

    token: TokenText
    offset: int
    """Characters of the text before it."""
    logprob: float | None
    """None for the first token of a prompt, which is not predicted."""
    rank: int | None
    top: tuple[tuple[TokenText, float], ...]


class TokenTexts:
    """The tokens of one vocabulary; caches those that were used."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, TokenText] = {}

    def text_of(self, token_id: int) -> TokenText:
        """The token with this id."""
        if (known := self._known.get(token_id)) is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def scored(self, token_id: int, offset: int, score: TokenLogprob | None) -> ScoredToken:
        """A token with its logprobs; None: it is not predicted."""
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
