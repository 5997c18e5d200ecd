"""An LRU cache of compiled grammars and of the errors of those that cannot be compiled.

An error that may be chance is kept when it repeats. Evicting an entry does not affect requests that
use its grammar: they hold a reference.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from sluice_runtime.grammar.compile.pool import Compiled
from sluice_runtime.grammar.keys import GrammarKey

MAX_BYTES: Final = 128 << 20
"""Of serialized grammars."""
MAX_ENTRIES: Final = 1024


class GrammarCache:
    """Keeps errors like grammars, but no failure that is not the grammar's fault."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[GrammarKey, Compiled] = OrderedDict()
        self._bytes = 0
        self._accidents: OrderedDict[GrammarKey, None] = OrderedDict()

    def get(self, key: GrammarKey) -> Compiled | None:
        """The entry, which becomes the most recently used."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def judged(self, entry: Compiled) -> Compiled:
        """The result to report for a compilation that just ended; kept if the next would end
        alike."""
        if entry.accident and self._first_of(entry.key):
            return entry
        if entry.accident:
            entry = replace(entry, error=entry.error or entry.failure, failure="")
        if not entry.failure:
            self.put(entry)
        return entry

    def _first_of(self, key: GrammarKey) -> bool:
        """Whether it is the grammar's first accident that is remembered."""
        if key in self._accidents:
            return False
        self._accidents[key] = None
        if len(self._accidents) > self._max_entries:
            self._accidents.popitem(last=False)
        return True

    def put(self, entry: Compiled) -> None:
        """Keeps the entry; evicts the least recently used ones beyond the limits."""
        if known := self._entries.pop(entry.key, None):
            self._bytes -= _size(known)
        self._entries[entry.key] = entry
        self._bytes += _size(entry)
        while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(entry: Compiled) -> int:
    return entry.size_bytes + len(entry.key.text)
