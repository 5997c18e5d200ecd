"""The host tier: pages evicted from the prefix cache, kept in host memory or in a file on disk.

A digest of all tokens up to its end identifies a page, so a prefix is found page by page. An
evicted page is copied out, before its memory is reused, if it is worth it: it was used twice, pages
in the tier continue it, or copying is faster than computing it. A request whose prefix continues in
the tier waits while those pages are copied into free pages of the pool; others run meanwhile. The
pages then belong to the prefix cache. While copying takes longer than computing, no request waits
for it. Pages move from memory to disk ahead of time. Knows slots, not bytes: the engine copies, and
reports which copies have ended.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from sluice_runtime.scheduler.batch import HostCopied, HostCopies
from sluice_runtime.scheduler.host_index import MAX_LOADED, HostIndex, HostPage
from sluice_runtime.scheduler.prefix_cache import Lock, Match, PrefixCache
from sluice_runtime.scheduler.prefix_node import TOKEN_BYTES, Node
from sluice_runtime.scheduler.request import Fence, Request
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import HostCacheLoad

DIGEST_BYTES: Final = 16
"""Length of a digest in bytes. The hash is cryptographic, so no client can make two prefixes
collide."""
TURN_SECONDS: Final = 0.003
"""Least time that a request waits for returning pages: one more step."""
LEAST_WAIT_SECONDS: Final = 0.25
"""Least time that requests wait for copies before their tokens are computed instead."""
FREE_SHARE: Final = 8
"""One in so many memory slots is kept free where there is a disk."""
MAX_SPILLED: Final = 64
"""Most pages that move to disk at once."""


@dataclass(slots=True, eq=False)
class TierLoad:
    """Pages on their way into the pool, which continue a locked prefix."""

    lock: Lock
    key: bytes
    """Token ids of `pages`, as the prefix tree compares them."""
    pages: list[HostPage]
    page_ids: list[int] = field(default_factory=list)
    """Destination pages in the pool; after loading, only those that the prefix tree did not take
    over."""


@dataclass(slots=True)
class HostCounts:
    """Counters since the start."""

    hit_tokens: Counter[str] = field(default_factory=Counter)
    """Tokens that were loaded back, by tier: memory or disk."""
    bad_pages: int = 0
    """Pages whose content had changed when they were read, or that could not be written."""
    copied_pages: Counter[str] = field(default_factory=Counter)
    """Pages copied, by `HostCopied.kind`."""
    copy_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class HostTier:
    """The index of pages in the tier, and the copies that the tier needs."""

    def __init__(
        self,
        settings: SchedulerSettings,
        cache: PrefixCache,
        token_seconds: Callable[[], float],
        lease: Callable[[list[int], Lock, Fence], None],
        release: Callable[[Fence], None],
    ) -> None:
        """`cache` reports evictions to this tier. `token_seconds`: seconds to compute a token, 0
        while unknown. `lease`: keeps pages and a lock until `release`."""
        pages = settings.host_pages
        assert pages is not None
        self._page_size = settings.page_size
        self._page_bytes = pages.page_bytes
        self._cache = cache
        cache.packing.hash_pages, cache.on_evict = self._hash, self._evicted
        self._token_seconds = token_seconds
        self._lease = lease
        self._release = release
        self._spills = pages.disk > 0
        self._free_goal = max(1, pages.memory // FREE_SHARE)
        self.now = 0.0
        """Time of the step that is being planned."""
        self.index = HostIndex(pages)
        self.counts = HostCounts()
        self._load_pages = MAX_LOADED
        """Pages that the next step may still begin to load."""
        self._saved: list[tuple[int, int]] = []
        self._begun: list[TierLoad] = []
        self._loading: set[bytes] = set()
        """Digests of pages on their way into the pool."""
        self._loads: dict[int, tuple[list[TierLoad], float]] = {}
        """Loads by the step that began them, oldest first, with the time until which requests wait
        for them."""
        self._spilling: dict[int, list[tuple[HostPage, int]]] = {}
        """Pages on their way to disk with their new slot, by the step that began the copies."""

    @property
    def loading(self) -> bool:
        """Whether a request waits for returning pages."""
        return bool(self._loading)

    @property
    def saving_pages(self) -> frozenset[int]:
        """Pages that the next step copies out first; for integrity checks."""
        return frozenset(page for page, _ in self._saved)

    def load(self) -> HostCacheLoad:
        """Counters and occupancy for metrics."""
        counts, page_bytes = self.counts, self._page_bytes
        memory, disk = self.index.used()
        return HostCacheLoad(
            hit_tokens=dict(counts.hit_tokens),
            copied_bytes={kind: n * page_bytes for kind, n in counts.copied_pages.items()},
            copy_seconds=dict(counts.copy_seconds),
            bad_pages=counts.bad_pages,
            used_bytes={"memory": memory * page_bytes, "disk": disk * page_bytes},
        )

    # Pages that leave the pool.

    def _hash(self, node: Node, most: int) -> int:
        """Computes digests of at most `most` packed pages; returns their number. The prefix before
        the node has its digests."""
        digests, width = node.digests, self._page_size * TOKEN_BYTES
        first = len(digests)
        end = min(first + most, len(node.packed) // width)
        if end <= first:  # such as those of a node that was trimmed
            return 0
        before = digests[-1] if digests else _last_digest(node.parent)
        for at in range(first * width, end * width, width):
            before = _digest(before, node.packed[at : at + width])
            digests.append(before)
        return end - first

    def _evicted(self, node: Node, pages: int) -> None:
        """Called for the node's last `pages` pages, which leave the tree; saves each page that is
        worth it. Pages that could not be hashed yet are not saved."""
        digests, first = node.digests, len(node.page_ids) - pages
        hashed = min(len(digests), len(node.page_ids))
        depth = hashed + _pages_before(node)
        for index in range(hashed - 1, first - 1, -1):
            digest = digests[index]
            before = digests[index - 1] if index else _last_digest(node.parent)
            if page := self.index.get(digest):
                self.index.touch(page)
            elif self._worth_saving(node, digest, depth) and (
                page := self.index.add(digest, before)
            ):
                self._saved.append((node.page_ids[index], page.slot))
            depth -= 1

    def _worth_saving(self, node: Node, digest: bytes, depth: int) -> bool:
        """Whether to save a page whose prefix is `depth` pages long. A page that pages in the tier
        continue is always saved, because these could not be found without it."""
        if node.uses > 1 or self.index.continues(digest):
            return True
        there_and_back = self._page_seconds("saved") + self._page_seconds("loaded")
        return self._cheaper(depth, there_and_back)

    def _cheaper(self, pages: int, page_seconds: float) -> bool:
        """Whether copying `pages` pages is faster than computing them; True while unknown."""
        computing = self._computing_seconds(pages)
        return not computing or computing > pages * page_seconds + TURN_SECONDS

    def _computing_seconds(self, pages: int) -> float:
        return pages * self._page_size * self._token_seconds()

    def _page_seconds(self, kind: str) -> float:
        pages = self.counts.copied_pages[kind]
        return self.counts.copy_seconds[kind] / pages if pages else 0.0

    # Returning pages.

    def returning(self, request: Request, match: Match, most: int = MAX_LOADED) -> int:
        """Number of pages after the request's cached prefix that should be loaded before the
        request starts. At most `most`, which the step may begin to load; if that is 0, a result of
        1 says that there are such pages."""
        pages = len(self._found(request, match, max(most, self._least_worth_loading())))
        if not pages or not self._cheaper(pages, self._page_seconds("loaded")):
            return 0
        return max(1, min(pages, most))

    def _least_worth_loading(self) -> int:
        """The fewest pages that are faster to load than to compute, at most `MAX_LOADED`."""
        gain_seconds = self._computing_seconds(1) - self._page_seconds("loaded")
        return min(MAX_LOADED, int(TURN_SECONDS / gain_seconds) + 1) if gain_seconds > 0 else 1

    def arriving(self, request: Request, match: Match) -> int:
        """Number of pages after the request's cached prefix that are being loaded."""
        if not self._loading or self._late():
            return 0
        behind = self._digests_behind(request, match)
        return sum(1 for _ in takewhile(self._loading.__contains__, behind))

    def _late(self) -> bool:
        """Whether the oldest copies in flight take too long; all others queue behind them."""
        return any(until <= self.now for _, until in islice(self._loads.values(), 1))

    def lock(self, request: Request, match: Match) -> TierLoad:
        """Locks the cached prefix and the tier's pages that continue it; allocates nothing."""
        pages = self._found(request, match, self._load_pages)
        self._load_pages -= len(pages)
        for page in pages[::-1]:  # so that the first pages are dropped last
            page.readers += 1
            self.index.touch(page)
        first = match.pages * self._page_size
        key = request.key_of(first, first + len(pages) * self._page_size)
        return TierLoad(self._cache.lock(match), key, pages)

    def begin(self, load: TierLoad, page_ids: list[int]) -> None:
        """Schedules copies of the load's pages into `page_ids` for the next step; `page_ids` are
        leased until the copies end."""
        load.page_ids = page_ids
        self._lease(page_ids, load.lock, _fence_of(load))
        self._loading.update(page.digest for page in load.pages)
        self._begun.append(load)

    def _found(self, request: Request, match: Match, most: int) -> list[HostPage]:
        """The tier's next pages of the request, at most `most`, and at most one where that is 0."""
        if not len(self.index) or self._late():
            return []
        pages = []
        for digest in islice(self._digests_behind(request, match), max(most, 1)):
            if (page := self.index.get(digest)) is None:
                break
            pages.append(page)
        return pages

    # Steps.

    def take_copies(self, step: int) -> HostCopies | None:
        """Copies that the step has to begin; None if there are none."""
        self._load_pages = MAX_LOADED
        # A slot may have been taken twice in one step; then the last page has it.
        last = {slot: page for page, slot in self._saved}
        saved, self._saved = tuple((page, slot) for slot, page in last.items()), []
        loads, self._begun = self._begun, []
        spilled = tuple(self._spilled(step)) if self._spills else ()
        if not (saved or loads or spilled):
            return None
        if loads:
            computing = self._computing_seconds(sum(len(load.pages) for load in loads))
            self._loads[step] = loads, self.now + max(LEAST_WAIT_SECONDS, computing)
        loaded = [
            (page.slot, to)
            for load in loads
            for page, to in zip(load.pages, load.page_ids, strict=True)
        ]
        return HostCopies(saved, tuple(loaded), spilled)

    def _spilled(self, step: int) -> Iterator[tuple[int, int]]:
        """Starts moving the least recently used pages to disk, so that memory slots become free in
        time."""
        if self._spilling:
            return
        shortage = min(MAX_SPILLED, self._free_goal - self.index.free_memory)
        spilling: list[tuple[HostPage, int]] = []
        while len(spilling) < shortage and (page := self.index.oldest(disk=False)):
            page.readers += 1
            if (slot := self.index.take_slot(disk=True)) is None:
                self.index.read(page)
                break
            spilling.append((page, slot))
            yield page.slot, slot
        if spilling:
            self._spilling[step] = spilling

    def landed(self, copied: Iterable[HostCopied]) -> None:
        """Processes copies that have ended."""
        for copies in copied:
            self.counts.copied_pages[copies.kind] += copies.pages
            self.counts.copy_seconds[copies.kind] += copies.seconds
            self.counts.bad_pages += len(copies.bad_slots)
            bad = frozenset(copies.bad_slots)
            if copies.kind == "loaded":
                for load in self._loads.pop(copies.step)[0]:
                    self._loaded(load, bad)
            elif copies.kind == "spilled":
                for page, slot in self._spilling.pop(copies.step):
                    self._moved(page, slot, bad=slot in bad)

    def _loaded(self, load: TierLoad, bad: frozenset[int]) -> None:
        """Adds the pages that arrived intact to the tree, up to the first bad one."""
        good = next((n for n, page in enumerate(load.pages) if page.slot in bad), len(load.pages))
        for page in load.pages[:good]:
            tier = "disk" if self.index.on_disk(page.slot) else "memory"
            self.counts.hit_tokens[tier] += self._page_size
        for page in load.pages:
            self._loading.discard(page.digest)
            if page.slot in bad:
                self.index.drop(page)
            self.index.read(page)
        if self._cache.grows(load.lock):
            key = load.key[: good * self._page_size * TOKEN_BYTES]
            locked, digests = load.lock.pages, [page.digest for page in load.pages[:good]]
            canonical = self._cache.extend(load.lock, key, load.page_ids[:good], digests=digests)
            taken = load.lock.pages - locked
            load.page_ids[:taken] = load.page_ids[: len(canonical)]  # computed meanwhile
        self._release(_fence_of(load))

    def _moved(self, page: HostPage, slot: int, *, bad: bool) -> None:
        """Processes a finished copy to disk. The page stays in memory if a reader needs it there
        now."""
        self.index.read(page)
        if bad or page.dropped or page.readers:
            self.index.free(slot)
        else:
            self.index.move(page, slot)
        if bad:
            self.index.drop(page)

    def check_integrity(self) -> None:
        """Asserts that no slot is lost or used twice."""
        reading = {page for load in self._begun for page in load.pages}
        reading.update(
            page for loads, _ in self._loads.values() for load in loads for page in load.pages
        )
        spilling = [pair for pairs in self._spilling.values() for pair in pairs]
        reading.update(page for page, _ in spilling)
        dropped = [page.slot for page in reading if page.dropped]
        self.index.check_integrity([*dropped, *(slot for _, slot in spilling)])
        assert {page for page in self.index if page.readers} <= reading

    def clear(self) -> None:
        """Removes every page from the index; copies in flight still arrive."""
        self.index.clear()

    def _digests_behind(self, request: Request, match: Match) -> Iterator[bytes]:
        """Digests of the pages behind the request's cached prefix that it need not compute. Each is
        computed when it is asked for, and remembered."""
        if not request.digests_from <= match.pages <= request.digests_from + len(request.digests):
            request.digests_from, request.digests = match.pages, []
        known, width = request.digests, self._page_size * TOKEN_BYTES
        for page in range(match.pages, request.matchable_pages(self._page_size)):
            if page == request.digests_from + len(known):
                before = known[-1] if known else _matched_digest(request, match)
                if before is None:
                    return
                known.append(_digest(before, request.key[page * width : (page + 1) * width]))
            yield known[page - request.digests_from]


def _digest(before: bytes, page: bytes) -> bytes:
    """Digest of a prefix that ends with `page`, from that of the prefix before it."""
    return hashlib.blake2b(before + page, digest_size=DIGEST_BYTES).digest()


def _last_digest(node: Node | None) -> bytes:
    """Digest of the prefix down to the end of a node."""
    assert node is not None
    return node.digests[len(node.page_ids) - 1] if node.page_ids else _root_digest(node.edge)


def _matched_digest(request: Request, match: Match) -> bytes | None:
    """Digest of a request's cached prefix; None if it is not computed yet."""
    if not match.path:
        return _root_digest(request.namespace)
    digests = match.path[-1].digests
    return digests[match.last_pages - 1] if match.last_pages <= len(digests) else None


def _root_digest(namespace: Hashable) -> bytes:
    """Digest of the empty prefix: one for each namespace, never equal to a page's."""
    return hashlib.blake2b(repr(namespace).encode(), digest_size=DIGEST_BYTES).digest()


def _pages_before(node: Node) -> int:
    pages, parent = 0, node.parent
    while parent is not None:
        pages, parent = pages + len(parent.page_ids), parent.parent
    return pages


def _fence_of(load: TierLoad) -> Fence:
    return "load", id(load)
