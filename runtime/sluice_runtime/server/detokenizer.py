"""Token ids to text, piece by piece: the pieces together are `decode` of all ids.

A character may be split over tokens; text that the next token may still change is held back. Knows
nothing of stop strings or requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sluice_runtime.model.tokenizer import Tokenizer

_REPLACEMENT: Final = "\ufffd"
_CONTEXT_TOKENS: Final = 4
"""Context decoded with new tokens: decoders treat the first token of a text differently."""
_WINDOW_TOKENS: Final = 32
"""Tokens decoded at a time at most, unless they are one run of byte tokens."""


class Detokenizer:
    """The text of one growing answer."""

    def __init__(self, tokenizer: Tokenizer, shown: Mapping[int, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._shown = shown or {}
        """Special tokens to be decoded as text, with their text."""
        self._window: list[int] = []
        """The last tokens: context, then those whose text has not been returned."""
        self._emitted = 0
        """Characters of the window's text that have been returned."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        hidden = self._tokenizer.hidden_ids
        return "".join(
            [
                self._push_one(token) if token not in hidden else self._push_shown(token)
                for token in token_ids
                if token not in hidden or token in self._shown
            ]
        )

    def finish(self) -> str:
        """The text that was held back; nothing may be pushed afterwards."""
        text = self._tokenizer.decode(self._window)[self._emitted :]
        self._emitted += len(text)
        return text

    def _push_shown(self, token: int) -> str:
        """Characters never span a special token."""
        text = self.finish() + self._shown[token]
        self._window, self._emitted = [], 0
        return text

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        if token in self._tokenizer.byte_ids:
            return ""
        text = self._tokenizer.decode(self._window)
        open_ended = text.endswith(_REPLACEMENT)
        certain = len(text) - 1 if open_ended else len(text)
        piece = text[self._emitted : certain]
        self._emitted = max(self._emitted, certain)
        if not open_ended:
            self._keep_last(_CONTEXT_TOKENS)
        elif len(self._window) > _WINDOW_TOKENS:
            self._cut_inside(text)
        return piece

    def _keep_last(self, tokens: int) -> None:
        if len(self._window) > tokens:
            self._window = self._window[-tokens:]
            self._emitted = len(self._tokenizer.decode(self._window))

    def _cut_inside(self, text: str) -> None:
        """Drops old tokens of a long run of incomplete characters.

        Where two halves decode to the whole, no character goes across: what comes later cannot
        change the first half.
        """
        decode = self._tokenizer.decode
        for kept in range(1, 2 * _CONTEXT_TOKENS):
            tail = decode(self._window[-kept:])
            if decode(self._window[:-kept]) + tail == text:
                self._window = self._window[-kept:]
                self._emitted -= len(text) - len(tail)
                return
