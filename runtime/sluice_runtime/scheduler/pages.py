"""The pages of the KV pool: the free list, and leases on pages that came back while still in use.

A fence stands for one use of pages that outlives their owner: a step in flight, or a transfer. A
lease ends when all of its fences have passed, in whatever order they do. Knows page numbers only,
not what is in a page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // page_size)


class PageAllocator:
    """A free list. `order`: of the pages when they are first handed out (tests shuffle); `on_free`:
    called with pages that come back (tests poison them)."""

    def __init__(
        self,
        total_pages: int,
        order: Sequence[int] | None = None,
        on_free: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.total_pages = total_pages
        """Without pages that were retired and given back."""
        self.retired: set[int] = set()
        """Pages that nobody gets again."""
        self._on_free = on_free
        self._free = list(range(total_pages) if order is None else order)[::-1]
        self._is_held = bytearray(total_pages)
        assert sorted(self._free) == list(range(total_pages))

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def held_pages(self) -> int:
        return self.total_pages - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """`count` pages; the caller has checked that they are there."""
        assert count <= len(self._free), f"wanted {count} pages, {len(self._free)} are free"
        cut = len(self._free) - count
        pages = self._free[cut:][::-1]
        del self._free[cut:]
        is_held = self._is_held
        for page in pages:
            is_held[page] = 1
        return pages

    def retire(self, page_ids: Sequence[int]) -> None:
        """Pages that are held leave the pool for good when they are given back."""
        assert all(self._is_held[page] for page in page_ids), "a free page is retired"
        self.retired.update(page_ids)

    def free(self, page_ids: Sequence[int]) -> None:
        """Takes pages back; each must be held."""
        if self._on_free is not None and page_ids:
            self._on_free(page_ids)
        is_held = self._is_held
        for page in page_ids:
            assert is_held[page], f"page {page} is freed twice"
            is_held[page] = 0
        if self.retired:
            kept = [page for page in page_ids if page not in self.retired]
            self.total_pages -= len(page_ids) - len(kept)
            page_ids = kept
        self._free += page_ids


Fence = Hashable
Leased = TypeVar("Leased")


@dataclass(slots=True, eq=False)
class _Lease(Generic[Leased]):
    leased: Leased
    fences: set[Fence]


class PageLeases(Generic[Leased]):
    """What was given back, by the fences that it waits for."""

    def __init__(self) -> None:
        self._leases: dict[Fence, list[_Lease[Leased]]] = {}
        """By open fence."""

    def __iter__(self) -> Iterator[Leased]:
        """All that waits, each once."""
        seen: dict[int, Leased] = {}
        for leases in self._leases.values():
            seen |= {id(lease): lease.leased for lease in leases}
        return iter(seen.values())

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return any(self._leases.values())

    def open(self, fence: Fence) -> None:
        """A use begins."""
        assert fence not in self._leases, f"fence {fence} is open"
        self._leases[fence] = []

    def is_open(self, fence: Fence) -> bool:
        return fence in self._leases

    def hold(self, leased: Leased, fences: Collection[Fence]) -> None:
        """Until all of `fences`, which are open and one at least, have passed."""
        lease = _Lease(leased, set(fences))
        for fence in lease.fences:
            self._leases[fence].append(lease)

    def passed(self, fence: Fence) -> list[Leased]:
        """A use is over; returns what nobody uses any more, in the order of `hold`."""
        ended = []
        for lease in self._leases.pop(fence):
            lease.fences.remove(fence)
            if not lease.fences:
                ended.append(lease.leased)
        return ended
