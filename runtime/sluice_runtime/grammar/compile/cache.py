"""Compiled grammars and the errors of those that cannot be compiled, least recently used first out.

What may have been an accident counts when it happens again. Knows sizes, not what is kept: a
request that uses a grammar keeps it by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from sluice_runtime.grammar.compile.pool import Compiled
from sluice_runtime.grammar.keys import GrammarKey

MOST_BYTES: Final = 128 << 20
"""Of compiled grammars, as they are written down."""
MOST_ENTRIES: Final = 1024


class GrammarCache:
    """An error is remembered like a grammar, a failure that is not the grammar's never."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
        self._most_bytes = most_bytes
        self._most_entries = most_entries
        self._entries: OrderedDict[GrammarKey, Compiled] = OrderedDict()
        self._bytes = 0
        self._accidents: OrderedDict[GrammarKey, None] = OrderedDict()

    def get(self, key: GrammarKey) -> Compiled | None:
        """The entry, which becomes the last to go."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def judged(self, entry: Compiled) -> Compiled:
        """What a compilation that just ended comes to; kept when the next would end like it."""
        if entry.accident and self._first_of(entry.key):
            return entry
        if entry.accident:
            entry = replace(entry, error=entry.error or entry.failure, failure="")
        if not entry.failure:
            self.put(entry)
        return entry

    def _first_of(self, key: GrammarKey) -> bool:
        """Whether it is the grammar's first accident, as far back as is known."""
        if key in self._accidents:
            return False
        self._accidents[key] = None
        if len(self._accidents) > self._most_entries:
            self._accidents.popitem(last=False)
        return True

    def put(self, entry: Compiled) -> None:
        """Keeps the entry; what has not been used for longest goes when there is too much."""
        if known := self._entries.pop(entry.key, None):
            self._bytes -= _size(known)
        self._entries[entry.key] = entry
        self._bytes += _size(entry)
        while self._bytes > self._most_bytes or len(self._entries) > self._most_entries:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(entry: Compiled) -> int:
    return entry.size_bytes + len(entry.key.text)
