"""Finds the slot of each page of the host tier, in memory or in the file on disk.

A digest of all tokens up to its end identifies a page. Knows slots, but neither bytes nor requests.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sluice_runtime.scheduler.settings import HostPages

MAX_LOADED: Final = 512
"""Maximum pages that a step begins to load, of all requests together."""


@dataclass(slots=True, eq=False)
class HostPage:
    """A page in the tier."""

    digest: bytes
    before: bytes
    """Digest of the prefix that it continues."""
    slot: int
    readers: int = 0
    """Number of copies in flight from its slot."""
    dropped: bool = False


class HostIndex:
    """Slots of all pages. The least recently used page is dropped first, in memory and on disk
    separately. A slot that is being read keeps its content."""

    def __init__(self, pages: HostPages) -> None:
        self._memory_pages = pages.memory
        self._pages: dict[bytes, HostPage] = {}
        self._followers: Counter[bytes] = Counter()
        self._by_use: tuple[OrderedDict[bytes, HostPage], ...] = (OrderedDict(), OrderedDict())
        """Pages in memory and pages on disk, least recently used first."""
        self._ends = pages.memory, pages.memory + pages.disk
        self._unused = [0, pages.memory]
        """First slots of memory and of disk that were never used; all behind them are unused
        too."""
        self._free: tuple[list[int], ...] = ([], [])

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[HostPage]:
        return iter(self._pages.values())

    def on_disk(self, slot: int) -> bool:
        return slot >= self._memory_pages

    def used(self) -> tuple[int, int]:
        """Pages in memory and on disk."""
        return len(self._by_use[0]), len(self._by_use[1])

    @property
    def free_memory(self) -> int:
        """Number of free slots in memory."""
        return len(self._free[0]) + self._ends[0] - self._unused[0]

    def get(self, digest: bytes) -> HostPage | None:
        return self._pages.get(digest)

    def continues(self, digest: bytes) -> bool:
        """Whether a page in the tier follows the prefix with this digest."""
        return digest in self._followers

    def touch(self, page: HostPage) -> None:
        """Marks a page as just used."""
        self._by_use[self.on_disk(page.slot)].move_to_end(page.digest)

    def add(self, digest: bytes, before: bytes) -> HostPage | None:
        """Adds a page in a memory slot; None: all slots are being read."""
        if (slot := self.take_slot(disk=False)) is None:
            return None
        page = self._pages[digest] = HostPage(digest, before, slot)
        self._by_use[0][digest] = page
        self._followers[before] += 1
        return page

    def drop(self, page: HostPage) -> None:
        """Removes a page from the index; its slot is free once no copy reads it."""
        if page.dropped:
            return
        page.dropped = True
        del self._pages[page.digest], self._by_use[self.on_disk(page.slot)][page.digest]
        self._followers[page.before] -= 1
        if not self._followers[page.before]:
            del self._followers[page.before]
        if not page.readers:
            self.free(page.slot)

    def read(self, page: HostPage) -> None:
        """Records that a copy from the page's slot has ended."""
        page.readers -= 1
        if page.dropped and not page.readers:
            self.free(page.slot)

    def free(self, slot: int) -> None:
        self._free[self.on_disk(slot)].append(slot)

    def oldest(self, *, disk: bool) -> HostPage | None:
        """The least recently used page, in memory or on disk, that is not being read."""
        return next((page for page in self._by_use[disk].values() if not page.readers), None)

    def take_slot(self, *, disk: bool) -> int | None:
        """Takes a free slot or, if there is none, the oldest page's, which is dropped; None: all
        slots are being read."""
        free, unused = self._free[disk], self._unused[disk]
        if not free and unused < self._ends[disk]:
            self._unused[disk] += 1
            return unused
        if not free and (oldest := self.oldest(disk=disk)) is not None:
            self.drop(oldest)
        return free.pop() if free else None

    def move(self, page: HostPage, slot: int) -> None:
        """Moves a page to its slot on disk, which has its content now; its memory slot becomes
        free."""
        assert not page.readers, "a slot is freed under a copy"
        self.free(page.slot)
        del self._by_use[0][page.digest]
        page.slot = slot
        self._by_use[1][page.digest] = page

    def clear(self) -> None:
        for page in list(self._pages.values()):
            self.drop(page)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Asserts that each slot is either free, or a page's, or in `held` by copies in flight."""
        used = [page.slot for page in self]
        slots = [*self._free[0], *self._free[1], *used, *held]
        for unused, end in zip(self._unused, self._ends, strict=True):
            slots += range(unused, end)
        assert len(slots) == len(set(slots)) == self._ends[1], "a slot leaked or is shared"
        assert sum(self._followers.values()) == len(used) == sum(map(len, self._by_use))
