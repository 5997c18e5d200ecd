"""The prefix tree against a plain dictionary, over random sequences of operations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sluice_runtime.scheduler.admission_bounds import Locking, Unlocking
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.prefix_cache import Lock, Match, PrefixCache, path_of
from sluice_runtime.scheduler.prefix_node import TOKEN_BYTES, Tail, key_of

from tests.examples import examples

KEYS = st.text("ab", max_size=7)
"""A letter is a page; with two letters most keys share a beginning."""
NAMESPACES = st.sampled_from(["", "salt"])


class TreeMachine(RuleBasedStateMachine):
    """`cached` maps namespace and prefix to its last page: all that can be found."""

    @initialize(
        page_size=st.sampled_from([1, 3]),
        eviction=st.sampled_from(list(EVICTIONS)),
        new_pages=st.sampled_from([1, 2, 99]),
    )
    def build(self, page_size: int, eviction: str, new_pages: int) -> None:
        self.size = page_size
        self.tree = PrefixCache(page_size, EVICTIONS[eviction], new_pages)
        self.cached: dict[tuple[str, str], int] = {}
        self.holders: list[tuple[Lock, str, str]] = []
        """Lock, namespace and key of the locked path."""
        self.orphans: list[tuple[Lock, str, str]] = []
        """The same, from before a flush."""
        self.matches: list[tuple[Match, list[int]]] = []
        """What was matched, with the pages that it had then."""
        self.in_tree: set[int] = set()
        self.made = 0

    def tokens(self, pages: str) -> list[int]:
        return [ord(page) + offset for page in pages for offset in range(self.size)]

    def key(self, pages: str) -> bytes:
        return key_of(self.tokens(pages))

    def found(self, namespace: str, pages: str) -> list[int]:
        ids: list[int] = []
        for end in range(1, len(pages) + 1):
            if (namespace, pages[:end]) not in self.cached:
                break
            ids.append(self.cached[namespace, pages[:end]])
        return ids

    def left(self, page_ids: list[int]) -> None:
        """Pages that the tree gave back: each was in it, and is no more."""
        assert len(set(page_ids)) == len(page_ids)
        assert self.in_tree >= set(page_ids)
        self.in_tree -= set(page_ids)

    def locked(self) -> set[tuple[str, str]]:
        return {(space, k[: i + 1]) for _, space, k in self.holders for i in range(len(k))}

    @rule(namespace=NAMESPACES, pages=KEYS, most=st.integers(0, 7))
    def hold(self, namespace: str, pages: str, most: int) -> None:
        match = self.tree.match(namespace, self.key(pages), most)
        wanted = self.found(namespace, pages)[:most]
        assert match.page_ids() == wanted
        assert self.tree.has(match)
        self.matches.append((match, wanted))
        before, cost = self.tree.evictable_pages, Locking().cost(match)
        lock = self.tree.lock(match)
        assert before - self.tree.evictable_pages == cost
        self.holders.append((lock, namespace, pages[: match.pages]))

    @precondition(lambda self: self.cached)
    @rule(pick=st.integers(0, 99))
    def hold_what_is_there(self, pick: int) -> None:
        places = sorted(self.cached)
        self.hold(*places[pick % len(places)], 7)

    @precondition(lambda self: self.holders)
    @rule(
        pick=st.integers(0, 99), pages=st.text("ab", min_size=1, max_size=5), packed=st.booleans()
    )
    def grow(self, pick: int, pages: str, packed: bool) -> None:
        index = pick % len(self.holders)
        lock, namespace, held = self.holders[index]
        ids = list(range(self.made, self.made + len(pages)))
        self.made += len(pages)
        tokens, first = self.tokens(held + pages), (len(held) + 1) * self.size
        tail = None if packed or first == len(tokens) else Tail(tokens, first, len(tokens))
        key = self.key(pages[:1] if tail else pages)
        canonical = self.tree.extend(lock, key, list(ids), tail)
        known = self.found(namespace, held + pages)[len(held) :]
        taken = lock.pages - len(held)
        if taken < len(pages):  # only while there is no time to compare the rest
            assert (taken, self.tree.packing.left_pages) == (len(canonical), 0)
            known = known[:taken]
        assert canonical == known
        for offset in range(len(known), taken):
            self.cached[namespace, held + pages[: offset + 1]] = ids[offset]
            self.in_tree.add(ids[offset])
        self.holders[index] = (lock, namespace, held + pages[:taken])

    @precondition(lambda self: self.holders)
    @rule(pick=st.integers(0, 99), forget=st.booleans())
    def give_back(self, pick: int, forget: bool) -> None:
        lock, namespace, held = self.holders.pop(pick % len(self.holders))
        before, gain = self.tree.evictable_pages, Unlocking().add(lock)
        if not forget:
            assert self.tree.unlock(lock) == []
            assert self.tree.evictable_pages - before == gain
            return
        left = self.tree.forget(lock)
        self.left(left)
        # What nobody else locks and nothing follows goes, from the end.
        end = len(held)
        locked = self.locked()
        while end and (namespace, held[:end]) not in locked:
            follows = any((namespace, held[:end] + page) in self.cached for page in "ab")
            if follows:
                break
            assert self.cached.pop((namespace, held[:end])) in left
            end -= 1

    @precondition(lambda self: self.orphans)
    @rule(pick=st.integers(0, 99), pages=st.text("ab", min_size=1, max_size=3))
    def give_an_orphan_back(self, pick: int, pages: str) -> None:
        lock, _, held = self.orphans.pop(pick % len(self.orphans))
        assert self.tree.extend(lock, self.key(pages), [-1] * len(pages)) == []
        assert lock.pages == len(held)
        self.left(self.tree.unlock(lock))

    @rule(pages=st.integers(0, 6))
    def evict(self, pages: int) -> None:
        locked, evictable = self.locked(), self.tree.evictable_pages
        evicted = self.tree.evict(pages)
        assert len(evicted) == min(pages, evictable)
        self.left(evicted)
        gone = {place for place, page in self.cached.items() if page in set(evicted)}
        assert not gone & locked
        for place in gone:
            del self.cached[place]
        for namespace, prefix in self.cached:
            assert len(prefix) == 1 or (namespace, prefix[:-1]) in self.cached

    @rule()
    def step(self) -> None:
        self.tree.packing.begin_step()

    @rule()
    def flush(self) -> None:
        self.left(self.tree.flush())
        self.cached.clear()
        self.orphans += self.holders
        self.holders = []

    @precondition(lambda self: self.matches)
    @rule(pick=st.integers(0, 99))
    def hold_what_was_found_before(self, pick: int) -> None:
        match, page_ids = self.matches[pick % len(self.matches)]
        assert isinstance(match.namespace, str)
        if not self.tree.has(match):
            return
        names = {page: place for place, page in self.cached.items()}
        held = names[page_ids[-1]][1] if page_ids else ""
        assert self.found(match.namespace, held) == page_ids == match.page_ids()
        lock = self.tree.lock(match)
        assert [page for node in path_of(lock)[::-1] for page in node.page_ids] == page_ids
        self.holders.append((lock, match.namespace, held))

    @invariant()
    def counts_are_those_of_the_nodes(self) -> None:
        if not hasattr(self, "tree"):
            return
        nodes = set(self.tree.nodes())
        locked = {node for lock, _, _ in self.holders + self.orphans for node in path_of(lock)}
        free = [page for node in nodes - locked for page in node.page_ids]
        held = [page for node in locked for page in node.page_ids]
        assert (len(free), len(held)) == (self.tree.evictable_pages, self.tree.protected_pages)
        assert sorted(free + held) == sorted(self.in_tree)

    @invariant()
    def a_node_has_the_tokens_of_its_pages(self) -> None:
        for node in self.tree.nodes() if hasattr(self, "tree") else ():
            unpacked = node.tail.last - node.tail.first if node.tail else 0
            tokens = len(node.packed) // TOKEN_BYTES + unpacked
            assert tokens == len(node.page_ids) * self.size

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for lock, _, _ in self.holders:
            self.tree.unlock(lock)
        for lock, _, _ in self.orphans:
            self.left(self.tree.unlock(lock))
        self.left(self.tree.evict(10_000))
        assert self.in_tree == set()
        assert list(self.tree.nodes()) == []
        assert (self.tree.evictable_pages, self.tree.protected_pages) == (0, 0)


STEPS: Any = {"stateful_step_count": 40, "suppress_health_check": [HealthCheck.too_slow]}
TestTree = TreeMachine.TestCase
TestTree.settings = examples(50, **STEPS)


@pytest.mark.process
class TestTreeLonger(TreeMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = examples(150, **STEPS)
