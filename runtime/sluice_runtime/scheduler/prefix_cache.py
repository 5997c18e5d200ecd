"""Computed prefixes and the pages that hold them: a radix tree over whole pages of token ids.

A node has one or more pages that follow its parent's; children differ in their first page. Tokens
are bytes, four for each id, so that one `memcmp` compares an edge. The root's children are
namespaces, which share no pages: a tenant's salt and an adapter determine one.

`match` only reads. A `Lock` protects its path from eviction; `extend` adds pages to a locked path,
and returns which of them the tree had already. When pages are needed, a `Rank` from the registry
`EVICTIONS` orders the prefixes. In every order only unlocked prefixes are evicted, each after all
that continue it. Knows no request and no free list: pages that leave the tree are returned to the
caller.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from sluice_runtime.scheduler.eviction import Rank, least_recently_used

if TYPE_CHECKING:
    from sluice_runtime.scheduler.ngram import NGramIndex

TOKEN_BYTES: Final = 4


def key_of(token_ids: Sequence[int]) -> bytes:
    """Token ids as the tree compares them."""
    return struct.pack(f"{len(token_ids)}i", *token_ids)  # a third of array's time


class Tail(NamedTuple):
    """Tokens [first, last) of a list that only grows, not packed yet."""

    token_ids: Sequence[int]
    first: int
    last: int


@dataclass(slots=True, eq=False)
class Node:
    """Pages that follow the parent's; root and namespaces have no pages."""

    parent: Node | None
    edge: Hashable
    """Key among the parent's children: the first page of tokens, or the namespace."""
    number: int
    """Number of the node in the order of creation; never reused."""
    packed: bytes = b""
    """First of its tokens, as the tree compares them."""
    tail: Tail | None = None
    """The rest of its tokens: those of an answer are packed when there is time for it."""
    page_ids: list[int] = field(default_factory=list)
    locks: int = 0
    made: int = 0
    """Tick at which the node's pages were added."""
    used: int = 0
    """Tick of its last lock or unlock."""
    uses: int = 0
    """Number of locks that the node has had."""
    queued: bool = False
    """Whether the node has an entry among the eviction candidates."""
    digests: list[bytes] = field(default_factory=list)
    """Digests for the host tier of its first pages; empty without a tier. There may be more, for
    pages that the node has lost."""
    ngrams: tuple[NGramIndex, ...] = ()
    """Indexes for drafts of the node's tokens; the parts of a node that was split share them."""
    children: dict[Hashable, Node] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        """All its tokens, as the tree compares them."""
        if self.tail is not None:
            self.pack(self.tail.last - self.tail.first)
        return self.packed

    def pack(self, most: int) -> int:
        """Packs at most `most` further tokens; returns their number."""
        if self.tail is None:
            return 0
        token_ids, first, last = self.tail
        end = min(first + most, last)
        self.packed += key_of(token_ids[first:end])
        self.tail = Tail(token_ids, end, last) if end < last else None
        return end - first

    def shorten(self, pages: int, size: int) -> None:
        """Keeps only the first `pages` pages, of `size` bytes each."""
        more = pages * size - len(self.packed)
        if self.tail is not None and more > 0:
            self.tail = self.tail._replace(last=self.tail.first + more // TOKEN_BYTES)
        else:
            self.packed, self.tail = self.packed[: pages * size], None
        del self.page_ids[pages:]


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
        """`new_pages`: maximum pages of new nodes that a step packs and hashes."""
        self._page_bytes = page_size * TOKEN_BYTES
        self._new_pages = self._left_pages = new_pages
        self._new: deque[Node] = deque()
        """Nodes with tokens that are not packed, or pages that are not hashed; oldest first."""
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
        self.on_insert: Callable[[Node, int], int] | None = None
        """Callback for a new node whose tokens are packed: hashes at most a number of pages that
        are not hashed yet, and returns how many it has hashed."""
        self.on_evict: OnEvict | None = None

    def match(self, namespace: Hashable, key: bytes, max_pages: int) -> Match:
        """The longest prefix of `key`, of at most `max_pages` pages. Changes nothing."""
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
            if key.startswith(node.key, at) and at + len(node.key) <= end:
                at += len(node.key)
            else:
                at += self._common_bytes(node, key, at, end)
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
        self, lock: Lock, key: bytes, page_ids: list[int], tail: Tail | None = None
    ) -> list[int]:
        """Adds computed pages at the end of a locked path; the lock then covers them too.

        `key`, then `tail`: the tokens of `page_ids`, in whole pages, at least the first page in
        `key`; the tree takes over the list. Returns the pages that the tree had already for the
        first tokens, of which the caller's pages are duplicates. After a flush nothing is added,
        and `lock.pages` stays unchanged.
        """
        if lock.epoch != self._epoch:
            return []
        width, node, at = self._page_bytes, lock.node, 0
        if tail is not None and (key[:width] in node.children or self._has_time_for(tail)):
            key, tail = key + key_of(tail.token_ids[tail.first : tail.last]), None
        canonical: list[int] = []
        while at < len(key):
            edge = key[at : at + width]
            child = node.children.get(edge)
            if child is None:
                child = node.children[edge] = self._node(node, edge)
                child.packed, child.tail = key[at:], tail
                child.page_ids = page_ids[at // width :] if at else page_ids
                child.made = self._tick
                if tail is not None or self.on_insert is not None:
                    self._new.append(child)
                    self._pack()
                self.evictable_pages += len(child.page_ids)
                node = child
                break
            if not key.startswith(child.key, at):
                common = self._common_bytes(child, key, at, len(key))
                child = self._split(child, common // width)
            at += len(child.key)
            canonical += child.page_ids
            node = child
        self._protect(node, lock.node)
        lock.node, lock.pages = node, lock.pages + len(page_ids)
        return canonical

    def begin_step(self) -> None:
        """Goes on with what earlier steps have left to pack and to hash."""
        self._left_pages = self._new_pages
        self._pack()

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
        self._new.clear()
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

    def _has_time_for(self, tail: Tail) -> bool:
        """Whether the step's budget has room for a tail, which then counts as packed."""
        pages = (tail.last - tail.first) * TOKEN_BYTES // self._page_bytes
        fits = pages <= self._left_pages
        self._left_pages -= pages * fits
        return fits

    def _pack(self) -> None:
        """Packs and hashes new nodes, as far as the step's budget goes."""
        while self._new and self._left_pages > 0:
            node, hashed = self._new[0], 0
            packed = node.pack(self._left_pages * self._page_bytes // TOKEN_BYTES)
            if self.on_insert is not None:
                hashed = self.on_insert(node, self._left_pages)
            self._left_pages -= max(packed * TOKEN_BYTES // self._page_bytes, hashed, 1)
            hashes_more = self.on_insert is not None and len(node.digests) < len(node.page_ids)
            if node.tail is None and not hashes_more:
                self._new.popleft()

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
        upper.packed, upper.page_ids = node.key[:cut], node.page_ids[:pages]
        upper.locks, upper.used = node.locks, node.used
        upper.made, upper.uses = node.made, node.uses
        node.parent, node.packed, node.page_ids = upper, node.key[cut:], node.page_ids[pages:]
        upper.digests, node.digests = node.digests[:pages], node.digests[pages:]
        upper.ngrams = node.ngrams
        node.edge = node.packed[: self._page_bytes]
        upper.children[node.edge] = node
        return upper

    def _common_bytes(self, node: Node, key: bytes, at: int, end: int) -> int:
        """Length in bytes of the whole pages that node and key[at:end] share; their first page is
        equal."""
        width = self._page_bytes
        shared, most = 1, min(len(node.key), end - at) // width
        while shared < most:
            middle = (shared + most + 1) // 2
            if key.startswith(node.key[shared * width : middle * width], at + shared * width):
                shared = middle
            else:
                most = middle - 1
        return shared * width

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
