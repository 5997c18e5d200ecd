"""Computed prefixes and the pages that hold them: a radix tree over whole pages of token ids.

A node has one or more pages that follow its parent's; children differ in their first page. The
root's children are namespaces, which share no pages: a tenant's salt and an adapter determine one.

`match` changes no prefix. A `Lock` protects its path from eviction; `extend` adds pages to a locked
path, and returns which of them the tree had already. When pages are needed, a `Rank` from the
registry `EVICTIONS` orders the prefixes. In every order only unlocked prefixes are evicted, each
after all that continue it. Knows no request and no free list: pages that leave the tree are
returned to the caller.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from sluice_runtime.scheduler.eviction import Rank, least_recently_used
from sluice_runtime.scheduler.prefix_node import (
    TOKEN_BYTES,
    Node,
    PrefixPacking,
    Tail,
    common_bytes,
)


class Match(NamedTuple):
    """The longest cached prefix of a key. Valid while `PrefixCache.has` returns True, though a
    longer prefix may have been cached since."""

    namespace: Hashable
    path: tuple[Node, ...]
    pages: int
    last_pages: int
    """Pages of the path's last node that belong to the match."""
    version: int
    """Version of the tree when the match was made."""

    def page_ids(self) -> list[int]:
        """The pages, in the order of their tokens."""
        ids: list[int] = []
        for node in self.path[:-1]:
            ids += node.page_ids
        if self.path:
            ids += self.path[-1].page_ids[: self.last_pages]
        return ids


@dataclass(slots=True, eq=False)
class Lock:
    """Keeps the path from a namespace down to `node` in the tree."""

    node: Node
    pages: int
    """Pages of the whole path."""
    epoch: int
    """Number of flushes before the lock was taken; a path from before a flush cannot grow."""


def path_of(lock: Lock) -> list[Node]:
    """Nodes of the locked path, from its end up to and including its namespace."""
    path, node = [], lock.node
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path


OnEvict = Callable[[Node, int], None]
"""Callback before a node loses a number of pages at its end. Their content stays valid until the
next step runs."""


class PrefixCache:
    """The tree. Its counts, in pages, are kept up to date, so that reading them takes constant
    time."""

    def __init__(
        self, page_size: int, rank: Rank = least_recently_used, new_pages: int = 1 << 30
    ) -> None:
        """`new_pages`: maximum pages that a step packs and hashes, besides those of lookups."""
        self._page_bytes = page_size * TOKEN_BYTES
        self.packing = PrefixPacking(page_size, new_pages)
        self._rank = rank
        self._order = count()
        self._root = Node(None, None, next(self._order))
        self._candidates: list[tuple[int, int, Node]] = []
        """Heap of unlocked leaves. An entry may be outdated; it is checked when it comes up."""
        self._tick = 0
        self._epoch = 0
        self._version = 0
        """Rises whenever what was matched before may no longer be there, or not in those nodes."""
        self.evictable_pages = 0
        self.protected_pages = 0
        """Pages in locked nodes, including flushed paths that are still locked."""
        self.on_evict: OnEvict | None = None

    def match(self, namespace: Hashable, key: bytes, max_pages: int) -> Match:
        """The longest prefix of `key`, of at most `max_pages` pages. Changes no prefix: it
        packs tokens that it compares, each once."""
        path, at, begin = self._walk(namespace, key, max_pages)
        width = self._page_bytes
        return Match(namespace, tuple(path), at // width, (at - begin) // width, self._version)

    def has(self, match: Match) -> bool:
        """Whether the match is certainly still valid, so that it may be locked."""
        return match.version == self._version

    def matched_pages(self, namespace: Hashable, key: bytes, max_pages: int) -> int:
        """Pages of the longest prefix."""
        _, at, _ = self._walk(namespace, key, max_pages)
        return at // self._page_bytes

    def _walk(self, namespace: Hashable, key: bytes, max_pages: int) -> tuple[list[Node], int, int]:
        """The nodes that hold the longest prefix of `key`, the offset in `key` where the prefix
        ends, and where the last node begins."""
        node = self._root.children.get(namespace)
        width = self._page_bytes
        end = min(max_pages, len(key) // width) * width
        path: list[Node] = []
        at = begin = 0
        while node is not None and at < end:
            node = node.children.get(key[at : at + width])
            if node is None:
                break
            path.append(node)
            begin = at
            packed = node.pack_to(end - at)
            if key.startswith(packed, at) and at + len(packed) <= end:
                at += len(packed)
            else:
                at += common_bytes(packed, key, at, end, self._page_bytes)
                break
        return path, at, begin

    def lock(self, match: Match) -> Lock:
        """Locks exactly the matched path, so that it cannot be evicted."""
        if match.path:
            node = match.path[-1]
            if match.last_pages < len(node.page_ids):
                node = self._split(node, match.last_pages)
        else:
            node = self._namespace(match.namespace)
        self._protect(node, self._root)
        return Lock(node, match.pages, self._epoch)

    def extend(
        self,
        lock: Lock,
        key: bytes,
        page_ids: list[int],
        tail: Tail | None = None,
        digests: Sequence[bytes] = (),
    ) -> list[int]:
        """Adds computed pages at the end of a locked path; the lock then covers them too.

        `key`, then `tail`: the tokens of `page_ids`, in whole pages, at least the first page in
        `key`; the tree takes over the list. `digests`: those of `page_ids`, if they are known.
        Returns the pages that the tree had already for the first tokens, of which the caller's
        pages are duplicates. Once the step has no budget to compare tokens that are not packed, the
        lock covers only these; after a flush nothing is added.
        """
        if lock.epoch != self._epoch:
            return []
        width, node, at = self._page_bytes, lock.node, 0
        new, end = Node(node, None, next(self._order), key, tail, page_ids), len(page_ids) * width
        canonical: list[int] = []
        compares = True
        while at < end and self.packing.pack(new, at + width) == at + width:
            edge = new.packed[at : at + width]
            child = node.children.get(edge)
            if child is None:
                self._attach(new, node, edge, at // width, digests)
                node, at = new, end
            elif compares:
                length = min(len(child.page_ids) * width, end - at)
                common, compares = self.packing.compare(child, new, at, length)
                if common < len(child.page_ids) * width:
                    child = self._split(child, common // width)
                at += common
                canonical += child.page_ids
                node = child
            else:
                break
        self._protect(node, lock.node)
        lock.node, lock.pages = node, lock.pages + at // width
        return canonical

    def grows(self, lock: Lock) -> bool:
        """Whether `extend` would add to the lock's path: not after a flush."""
        return lock.epoch == self._epoch

    def unlock(self, lock: Lock) -> list[int]:
        """Releases a lock. Returns pages that became unreachable, if the path was flushed while it
        was locked; otherwise none."""
        self._tick += 1
        flushed = lock.epoch != self._epoch
        unreachable: list[int] = []
        node = lock.node
        while (parent := node.parent) is not None:
            node.locks -= 1
            node.used = self._tick
            if not node.locks:
                self.protected_pages -= len(node.page_ids)
                if flushed:
                    unreachable += node.page_ids
                else:
                    self.evictable_pages += len(node.page_ids)
                    self._queue_or_drop(node)
            node = parent
        return unreachable

    def forget(self, lock: Lock) -> list[int]:
        """Releases a lock and removes the part of its path that no other lock or node uses; returns
        the removed pages."""
        pages = self.unlock(lock)
        if lock.epoch != self._epoch:
            return pages
        node = lock.node
        while node.page_ids and not (node.locks or node.children):
            pages += self._trim(node, len(node.page_ids))
            assert node.parent is not None
            node = node.parent
        return pages

    def evict(self, pages: int) -> list[int]:
        """Evicts `pages` pages, or as many as may be evicted: the node with the lowest rank first,
        from its end. Returns them."""
        evicted: list[int] = []
        while self._candidates and len(evicted) < pages:
            rank, _, node = self._candidates[0]
            if node.locks or node.children or not node.page_ids:
                heapq.heappop(self._candidates)
                node.queued = False
            elif (now := self._rank(node)) != rank:
                heapq.heapreplace(self._candidates, (now, next(self._order), node))
            else:
                cut = min(len(node.page_ids), pages - len(evicted))
                if self.on_evict is not None:
                    self.on_evict(node, cut)
                evicted += self._trim(node, cut)
        return evicted

    def flush(self) -> list[int]:
        """Removes all prefixes; returns the pages that became free. Locked paths stay valid for
        their holders, but are no longer matched."""
        pages: list[int] = []
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            if not node.locks:
                pages += node.page_ids
        self._root, self._candidates = Node(None, None, next(self._order)), []
        self.packing.clear()
        self._epoch += 1
        self._version += 1
        self.evictable_pages = 0
        return pages

    def nodes(self) -> Iterable[Node]:
        """Every node that can be matched (for checks)."""
        nodes = list(self._root.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            yield node

    def _node(self, parent: Node, edge: Hashable) -> Node:
        return Node(parent, edge, next(self._order))

    def _namespace(self, namespace: Hashable) -> Node:
        node = self._root.children.get(namespace)
        if node is None:
            node = self._root.children[namespace] = self._node(self._root, namespace)
        return node

    def _attach(
        self, node: Node, parent: Node, edge: bytes, first: int, digests: Sequence[bytes]
    ) -> None:
        """Makes a new node, without its `first` pages, a child of `parent`."""
        node.parent, node.edge, node.made = parent, edge, self._tick
        if first:
            node.packed, node.page_ids = node.packed[len(edge) * first :], node.page_ids[first:]
        # A node has digests only behind a parent that has all of its own.
        hashed = len(parent.digests) >= len(parent.page_ids)
        node.digests = list(digests[first:]) if hashed else []
        parent.children[edge] = node
        self.evictable_pages += len(node.page_ids)
        self.packing.add(node)

    def _protect(self, node: Node, stop: Node) -> None:
        """Locks `node` and its ancestors below `stop`."""
        self._tick += 1
        while node is not stop:
            if not node.locks:
                self.evictable_pages -= len(node.page_ids)
                self.protected_pages += len(node.page_ids)
            node.locks += 1
            node.uses += 1
            node.used = self._tick
            assert node.parent is not None
            node = node.parent

    def _split(self, node: Node, pages: int) -> Node:
        """Cuts a node in two; returns the upper one. Locks on `node` still cover all of it."""
        parent, cut = node.parent, pages * self._page_bytes
        assert parent is not None
        self._version += 1
        upper = parent.children[node.edge] = self._node(parent, node.edge)
        packed = node.pack_to(cut + self._page_bytes)
        upper.packed, upper.page_ids = packed[:cut], node.page_ids[:pages]
        upper.locks, upper.used = node.locks, node.used
        upper.made, upper.uses = node.made, node.uses
        node.parent, node.packed, node.page_ids = upper, packed[cut:], node.page_ids[pages:]
        upper.digests, node.digests = node.digests[:pages], node.digests[pages:]
        upper.ngrams = node.ngrams
        node.edge = node.packed[: self._page_bytes]
        upper.children[node.edge] = node
        self.packing.add_upper(upper, node)
        return upper

    def _queue_or_drop(self, node: Node) -> None:
        """Makes an unlocked leaf an eviction candidate; removes a namespace without prefixes at
        once."""
        if node.children or node.locks:
            return
        if not node.page_ids:
            self._drop(node)
        elif not node.queued:
            node.queued = True
            heapq.heappush(self._candidates, (self._rank(node), next(self._order), node))

    def _trim(self, node: Node, pages: int) -> list[int]:
        """Removes the last pages of an unlocked leaf, and the leaf itself if no page is left;
        returns the pages."""
        self._version += 1
        left = len(node.page_ids) - pages
        cut = node.page_ids[left:]
        node.shorten(left, self._page_bytes)
        self.evictable_pages -= pages
        if not left:
            self._drop(node)
        return cut

    def _drop(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.edge]
        if parent is not self._root:
            self._queue_or_drop(parent)
