"""Nodes of the prefix tree, and when their tokens are packed, compared and hashed.

Packed tokens are bytes, four for each id, so that one `memcmp` compares an edge. A node may enter
the tree before all its tokens are packed: the rest is done in later steps, the oldest node first. A
step has a budget for that, in pages. Knows neither what locks do nor when pages are evicted.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

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

    def pack_to(self, end: int) -> bytes:
        """Its tokens as the tree compares them, up to byte `end` or more. Packs what is not
        packed of these."""
        if self.tail is not None and len(self.packed) < end:
            self.pack((end - len(self.packed)) // TOKEN_BYTES)
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


class PrefixPacking:
    """The budget of a step, and the nodes that wait for one."""

    def __init__(self, page_size: int, pages: int) -> None:
        """`page_size`: tokens of a page; `pages`: the budget of a step."""
        self._page_tokens, self._page_bytes = page_size, page_size * TOKEN_BYTES
        self._pages = self.left_pages = pages
        self._new: deque[Node] = deque()
        """Nodes with tokens that are not packed, or pages that are not hashed; oldest first, and
        each before those that continue it."""
        self.hash_pages: Callable[[Node, int], int] | None = None
        """Hashes at most a number of a node's packed pages that are not hashed yet; returns how
        many it has hashed."""

    def begin_step(self) -> None:
        """Goes on with what earlier steps have left to pack and to hash."""
        self.left_pages = self._pages
        self._spend()

    def add(self, node: Node) -> None:
        """Takes in a node that was added to the tree."""
        if self._is_new(node):
            self._new.append(node)
            self._spend()

    def add_upper(self, upper: Node, node: Node) -> None:
        """Takes in the upper part of a node that was split."""
        if self._is_new(upper):
            self._new.insert(self._new.index(node), upper)

    def clear(self) -> None:
        """Forgets all nodes."""
        self._new.clear()

    def pack(self, node: Node, end: int) -> int:
        """Packs a node's tokens up to byte `end` as far as the budget goes; returns how many bytes
        up to `end` are packed, in whole pages."""
        width, before = self._page_bytes, len(node.packed)
        if node.tail is not None and before < end and self.left_pages > 0:
            node.pack_to(min(end, before + self.left_pages * width))
            self.left_pages += (before - len(node.packed)) // width
        return min(end, len(node.packed) // width * width)

    def compare(self, child: Node, new: Node, at: int, length: int) -> tuple[int, bool]:
        """Compares `length` bytes of a child with those of `new` from `at` on, whose first page is
        equal: what is packed, and then each time as much again. Returns the bytes of the whole
        pages that are equal, and whether the budget was enough to know that no more are."""
        width = self._page_bytes
        shared, end = width, min(len(child.packed), len(new.packed) - at) // width * width
        while shared < length:
            end = min(length, max(2 * shared, end))
            ready = min(self.pack(child, end), self.pack(new, at + end) - at)
            shared = common_bytes(child.packed, new.packed, at, at + ready, width)
            if shared < end:
                return shared, shared < ready
        return shared, True

    def _is_new(self, node: Node) -> bool:
        """Whether some of a node's tokens are not packed, or pages not hashed that have to be."""
        unhashed = self.hash_pages is not None and len(node.digests) < len(node.page_ids)
        return node.tail is not None or unhashed

    def _spend(self) -> None:
        """Packs and hashes new nodes, as far as the budget goes."""
        while self._new and self.left_pages > 0:
            node, hashed = self._new[0], 0
            packed = node.pack(self.left_pages * self._page_tokens)
            if self.hash_pages is not None:
                hashed = self.hash_pages(node, self.left_pages)
            self.left_pages -= max(packed // self._page_tokens, hashed, 1)
            if not self._is_new(node):
                self._new.popleft()


def common_bytes(packed: bytes, key: bytes, at: int, end: int, width: int) -> int:
    """Length in bytes of the whole pages, of `width` bytes, that `packed` and key[at:end] share;
    their first page is equal."""
    shared, most = 1, min(len(packed), end - at) // width
    while shared < most:
        middle = (shared + most + 1) // 2
        if key.startswith(packed[shared * width : middle * width], at + shared * width):
            shared = middle
        else:
            most = middle - 1
    return shared * width
