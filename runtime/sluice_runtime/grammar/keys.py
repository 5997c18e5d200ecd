"""What a grammar is known by: to those who ask for it, and to those who follow it."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from sluice_runtime.messages import GrammarKind


class GrammarKey(NamedTuple):
    """What tells one compiled grammar from another."""

    kind: GrammarKind
    text: str


class KeptGrammar:
    """A compiled grammar that can be followed for as long as this is referred to. The text is for
    processes to come; it is large, and seldom needed."""

    def __init__(self, number: int, text: bytes) -> None:
        self.number = number
        self._text = zlib.compress(text, 1)

    def text(self) -> bytes:
        """As the compile process wrote it down."""
        return zlib.decompress(self._text)
