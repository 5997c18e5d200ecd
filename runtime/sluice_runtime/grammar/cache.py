"""Compiled grammars and the errors of those that cannot be compiled, least recently used first out.

Knows sizes, not what is kept: a request that uses a grammar keeps it by itself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sluice_runtime.grammar.pool import Compiled, GrammarKey

MOST_BYTES: Final = 128 << 20
"""Of compiled grammars, as they are written down."""
MOST_ENTRIES: Final = 1024


class GrammarCache:
    """Entries are taken as they are: an error is remembered like a grammar."""

    def __init__(self, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
        self._most_bytes = most_bytes
        self._most_entries = most_entries
        self._entries: OrderedDict[GrammarKey, Compiled] = OrderedDict()
        self._bytes = 0

    def get(self, key: GrammarKey) -> Compiled | None:
        """The entry, which becomes the last to go."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

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
