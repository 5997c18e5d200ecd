"""How a grammar is identified: as requested, and as compiled."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from sluice_runtime.wire.messages import GrammarKind


class GrammarKey(NamedTuple):
    """Identifies a grammar as requested."""

    kind: GrammarKind
    text: str


class KeptGrammar:
    """A compiled grammar; mask workers keep it for as long as this object is referred to. The text
    is for replacements of a worker; it is large and rarely needed, hence compressed."""

    def __init__(self, number: int, text: bytes) -> None:
        self.number = number
        self._text = zlib.compress(text, 1)

    def text(self) -> bytes:
        """As serialized by the compile process."""
        return zlib.decompress(self._text)
