"""Sizes and eviction of the grammar cache."""

from __future__ import annotations

from sluice_runtime.grammar.compile.cache import GrammarCache
from sluice_runtime.grammar.compile.pool import Compiled
from sluice_runtime.grammar.keys import GrammarKey


def entry(text: str, size_bytes: int) -> Compiled:
    return Compiled(GrammarKey("regex", text), size_bytes=size_bytes)


def test_one_that_is_put_again_is_counted_once() -> None:
    cache = GrammarCache(max_bytes=1000)
    cache.put(entry("kept", 400))
    for _ in range(5):
        cache.put(entry("again", 400))
    assert cache.get(GrammarKey("regex", "kept")) is not None


def test_the_least_recently_used_is_evicted() -> None:
    cache = GrammarCache(max_bytes=1000)
    for text in ("first", "second"):
        cache.put(entry(text, 400))
    cache.get(GrammarKey("regex", "first"))
    cache.put(entry("third", 400))
    found = [text for text in ("first", "second", "third") if cache.get(GrammarKey("regex", text))]
    assert found == ["first", "third"]
