"""Gives requests rows, pages and locks on cached prefixes, and takes them back.

Everything is given back on one path, whatever the reason. A fence is one use of pages that may
outlive their owner: a step in flight, or a transfer. Pages given back while in use are leased until
all their fences have passed, in any order. `check_integrity` asserts what must hold between steps;
only a bug of ours can break it. Knows neither budgets, nor the queue, nor the content of pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sluice_runtime.scheduler.batch import HostCopied, PagesReplaced, RowTrimmed
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.integrity import check_integrity
from sluice_runtime.scheduler.prefix_cache import Lock, Match, PrefixCache
from sluice_runtime.scheduler.request import Fence, Request, lock_of, row_of
from sluice_runtime.scheduler.settings import SchedulerSettings

if TYPE_CHECKING:
    from sluice_runtime.scheduler.host_tier import HostTier


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // page_size)


class PageAllocator:
    """A free list. `order`: order in which pages are first handed out (tests shuffle); `on_free`:
    called with pages that come back (tests poison them)."""

    def __init__(
        self,
        total_pages: int,
        order: Sequence[int] | None = None,
        on_free: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.total_pages = total_pages
        """Pages of the pool, without those that were retired and given back."""
        self.retired: set[int] = set()
        """Pages that are never handed out again."""
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
        """Takes `count` pages; the caller has checked that so many are free."""
        assert count <= len(self._free), f"wanted {count} pages, {len(self._free)} are free"
        cut = len(self._free) - count
        pages = self._free[cut:][::-1]
        del self._free[cut:]
        is_held = self._is_held
        for page in pages:
            is_held[page] = 1
        return pages

    def retire(self, page_ids: Sequence[int]) -> None:
        """Marks held pages to leave the pool for good when they are given back."""
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


TokenSeconds = Callable[[], float]
"""Seconds that computing a prompt token takes; 0 while unknown."""
Starting = Sequence[tuple[Request, Match, int]]
"""Requests that start, each with its cached prefix and the end of its first chunk, in tokens."""
Returning = Sequence[tuple[Request, Match]]
"""Requests whose cached prefix continues in the host tier, each with that prefix."""
Leased = TypeVar("Leased")


@dataclass(slots=True, eq=False)
class _Lease(Generic[Leased]):
    leased: Leased
    fences: set[Fence]


class PageLeases(Generic[Leased]):
    """Resources that were given back, grouped by the fences that they wait for."""

    def __init__(self) -> None:
        self._leases: dict[Fence, list[_Lease[Leased]]] = {}
        """Leases by open fence; a lease is listed under each of its fences."""

    def __iter__(self) -> Iterator[Leased]:
        """All held resources, without duplicates."""
        seen: dict[int, Leased] = {}
        for leases in self._leases.values():
            seen |= {id(lease): lease.leased for lease in leases}
        return iter(seen.values())

    def __bool__(self) -> bool:
        """Whether any resource is held."""
        return any(self._leases.values())

    def open(self, fence: Fence) -> None:
        """Opens a fence, when a use of pages begins."""
        assert fence not in self._leases, f"fence {fence} is open"
        self._leases[fence] = []

    def is_open(self, fence: Fence) -> bool:
        return fence in self._leases

    def hold(self, leased: Leased, fences: Collection[Fence]) -> None:
        """Holds `leased` until all `fences` have passed. There must be at least one, and all must
        be open."""
        lease = _Lease(leased, set(fences))
        for fence in lease.fences:
            self._leases[fence].append(lease)

    def passed(self, fence: Fence) -> list[Leased]:
        """Closes `fence`; returns leases that have no open fences left, oldest first."""
        ended = []
        for lease in self._leases.pop(fence):
            lease.fences.remove(fence)
            if not lease.fences:
                ended.append(lease.leased)
        return ended


class DeferredFree(NamedTuple):
    """Pages, row and lock that no request holds any more; they become free once no step or transfer
    uses them."""

    page_ids: list[int]
    row: int | None = None
    row_announced: bool = False
    lock: Lock | None = None
    trusted: bool = True
    """Whether other requests may use the locked path."""


class KvAllocator:
    """The pool's free list, the prefix tree and the rows."""

    def __init__(
        self, settings: SchedulerSettings, allocator: PageAllocator, token_seconds: TokenSeconds
    ) -> None:
        self._page_size = settings.page_size
        self._caches = settings.prefix_cache
        self._allocator = allocator
        rank = EVICTIONS[settings.eviction]
        chunk = settings.chunk_size or settings.max_prefill_tokens
        computed_pages = pages_for(chunk + settings.max_running_requests, settings.page_size)
        self._cache = PrefixCache(settings.page_size, rank, new_pages=computed_pages)
        self._free_rows = list(range(settings.max_running_requests))[::-1]
        self._steps_in_flight: set[Fence] = set()
        self._leases: PageLeases[DeferredFree] = PageLeases()
        self._dropped_rows: list[int] = []
        self._replaced: list[PagesReplaced] = []
        self._trimmed: list[RowTrimmed] = []
        self._reserved_pages = 0
        """Pages for the rest of prompts that are cut; see `available_pages`."""
        self.evicted_pages = 0
        """Counter: pages evicted since the start."""
        self.host: HostTier | None = None
        if settings.host_pages is not None:
            from sluice_runtime.scheduler.host_tier import HostTier

            self.host = HostTier(settings, self._cache, token_seconds, self._lease, self._pass)

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def loading(self) -> bool:
        """Whether pages are on their way back from the host tier."""
        return self.host is not None and self.host.loading

    @property
    def has_leases(self) -> bool:
        """Whether a step or a transfer still uses what was given back."""
        return bool(self._leases)

    @property
    def total_pages(self) -> int:
        return self._allocator.total_pages

    @property
    def retired_pages(self) -> int:
        """Number of retired pages, which are never handed out again, including those still held."""
        return len(self._allocator.retired)

    @property
    def free_pages(self) -> int:
        """Free pages, without reserved ones."""
        return max(0, self._allocator.free_pages - self._reserved_pages)

    @property
    def evictable_pages(self) -> int:
        """Cached pages that no request uses, without those that are reserved."""
        return max(0, self.available_pages - self.free_pages)

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now and are reserved for no prompt. Negative while reserved pages
        are missing: pages of a prompt that was computed twice are given back after the step, and
        those in the tree are locked at once."""
        return self._allocator.free_pages + self._cache.evictable_pages - self._reserved_pages

    def match(self, request: Request) -> Match:
        """The cached prefix of a waiting request."""
        most = request.matchable_pages(self._page_size)
        return self._cache.match(request.namespace, request.key, most)

    def matched_tokens(self, request: Request) -> int:
        """Leading tokens that are cached."""
        most = request.matchable_pages(self._page_size)
        return self._cache.matched_pages(request.namespace, request.key, most) * self._page_size

    def matched_path(self, request: Request) -> tuple[int, ...]:
        """Numbers of the tree's nodes that hold its cached tokens."""
        return tuple(node.number for node in self.match(request).path)

    def take(self, starting: Starting, returning: Returning = ()) -> None:
        """Gives each request a row, its cached prefix, and pages for its first chunk. Pages for the
        rest of its prompt are reserved, so a step evicts no more than its chunk needs. If locking
        another prefix has split a match's path, the request is matched again. All prefixes are
        locked before the first page is taken, since that may evict. Requests in `returning` get
        their next pages from the host tier."""
        missing, host = 0, self.host
        loads = [host.lock(r, self._fresh(r, m)) for r, m in returning] if host else ()
        for request, planned, end in starting:
            match = self._fresh(request, planned)
            request.row = self._free_rows.pop()
            request.page_ids = match.page_ids()
            request.lock = self._cache.lock(match)
            request.computed_tokens = request.prefilled_tokens = match.pages * self._page_size
            chunk = pages_for(end, self._page_size)
            request.reserved_pages = pages_for(len(request.token_ids), self._page_size) - chunk
            self._reserved_pages += request.reserved_pages
            missing += chunk - match.pages
        pages = iter(self._allocate(missing))
        for request, _, end in starting:
            own = pages_for(end, self._page_size) - len(request.page_ids)
            request.page_ids += islice(pages, own)
        for load in loads:
            assert host is not None
            host.begin(load, self._allocate(len(load.pages)))

    def append_chunk_pages(self, request: Request, end: int) -> list[int]:
        """Appends the reserved pages of a prompt's next chunk, which ends at token `end`; returns
        them."""
        pages = pages_for(end, self._page_size) - len(request.page_ids)
        if pages <= 0:
            return []
        request.reserved_pages -= pages
        self._reserved_pages -= pages
        appended = self._allocate(pages)
        request.page_ids += appended
        return appended

    def append_pages(self, requests: Sequence[Request]) -> list[int]:
        """Appends one page to each request."""
        pages = self._allocate(len(requests))
        for request, page in zip(requests, pages, strict=True):
            request.page_ids.append(page)
        return pages

    def append_draft_pages(self, request: Request, drafts: int) -> list[int]:
        """Appends the pages that `drafts` drafts need after the computed tokens; returns these
        pages."""
        pages = pages_for(request.computed_tokens + drafts, self._page_size)
        appended = self._allocate(max(0, pages - len(request.page_ids)))
        request.page_ids += appended
        return appended

    def trim(self, request: Request) -> None:
        """Gives back pages that the computed tokens do not need, after drafts were verified."""
        kept = pages_for(request.computed_tokens, self._page_size)
        refused = request.page_ids[kept:]
        del request.page_ids[kept:]
        self._defer_free(DeferredFree(refused), request)
        length, last_token = request.computed_tokens, request.token_ids[-1]
        self._trimmed.append(RowTrimmed(row_of(request), length, kept, last_token))

    def cache_unfinished(self, request: Request) -> None:
        """Adds a request's computed tokens to the tree, in whole pages. Duplicates of pages in the
        tree are replaced in its row and given back."""
        if not self._caches:
            return
        lock, size = lock_of(request), self._page_size
        first, last = lock.pages, request.landed_tokens // size
        if first == last:
            return
        key, tail = request.packed_key(first * size, last * size, size)
        canonical = self._cache.extend(lock, key, request.page_ids[first:last], tail)
        if canonical:
            span = slice(first, first + len(canonical))
            duplicates, request.page_ids[span] = request.page_ids[span], canonical
            if request.row_announced:
                self._replaced.append(PagesReplaced(row_of(request), first, tuple(canonical)))
            self._defer_free(DeferredFree(duplicates), request)

    def publishes(self, request: Request) -> bool:
        """Whether a started request's computed tokens can still be added to the tree."""
        return request.lock is not None and self._cache.grows(request.lock)

    def release(self, request: Request, *, trusted: bool = True) -> None:
        """Gives back everything that a request holds; its computed pages stay in the tree if
        `trusted`."""
        if trusted:
            self.cache_unfinished(request)
        lock = lock_of(request)
        own = request.page_ids[lock.pages :]
        row = DeferredFree([], row_of(request), request.row_announced)
        self._hold_or_free(row, self._steps_in_flight)
        self._defer_free(DeferredFree(own, lock=lock, trusted=trusted), request)
        request.page_ids, request.row, request.lock = [], None, None
        self._reserved_pages -= request.reserved_pages
        request.reserved_pages = 0
        request.row_announced = False
        request.computed_tokens = request.prefilled_tokens = request.draft_computed_tokens = 0

    def flush(self) -> None:
        """Removes all prefixes from the tree; running requests keep theirs, unshared."""
        if self.host:
            self.host.clear()
        self._allocator.free(self._cache.flush())

    def launched(self, step: int) -> None:
        """Opens the fence of a step, which may use everything that is held."""
        self._steps_in_flight.add(step)
        self._leases.open(step)

    def landed(self, step: int, copied: Iterable[HostCopied] = ()) -> None:
        """Closes the fence of a step whose results have arrived, and processes ended copies."""
        self._steps_in_flight.remove(step)
        self._cache.packing.begin_step()
        self._pass(step)
        if self.host and copied:
            self.host.landed(copied)

    def begin_transfer(self, request: Request, transfer: Fence) -> None:
        """Opens the fence of a transfer. The transfer may use pages that the request holds or will
        hold, even after the request has given them back."""
        fence = _fence_of(transfer)
        self._leases.open(fence)
        request.transfers.add(fence)

    def in_transfer(self, request: Request) -> bool:
        """Whether a transfer uses the request's pages, so that they come free after it."""
        return any(map(self._leases.is_open, request.transfers))

    def end_transfer(self, transfer: Fence) -> None:
        """Closes the fence of a transfer, which touches no page any more."""
        self._pass(_fence_of(transfer))

    def retire(self, page_ids: Sequence[int]) -> None:
        """Marks pages that a request or a transfer holds: they leave the pool when given back."""
        self._allocator.retire(page_ids)

    def take_dropped_rows(self) -> tuple[int, ...]:
        """Rows that came free since the last call."""
        dropped, self._dropped_rows = tuple(self._dropped_rows), []
        return dropped

    def take_replaced_pages(self) -> tuple[PagesReplaced, ...]:
        """Changes of rows' pages since the last call."""
        replaced, self._replaced = tuple(self._replaced), []
        return replaced

    def take_trimmed_rows(self) -> tuple[RowTrimmed, ...]:
        """Rows whose drafts were verified since the last call; some may be dropped by now."""
        trimmed, self._trimmed = tuple(self._trimmed), []
        return trimmed

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Asserts that each page and each row is exactly one of free, cached or held."""
        check_integrity(requests, self._leases, self._allocator, self._cache, self._free_rows)
        assert sum(request.reserved_pages for request in requests) == self._reserved_pages
        assert self.available_pages >= 0 or self.has_leases, "a page is reserved and not there"

    def _fresh(self, request: Request, planned: Match) -> Match:
        return planned if self._cache.has(planned) else self.match(request)

    def _lease(self, page_ids: list[int], lock: Lock, fence: Fence) -> None:
        """Leases pages and a lock until the fence has passed."""
        self._leases.open(fence)
        self._leases.hold(DeferredFree(page_ids, lock=lock), {fence})

    def _allocate(self, pages: int) -> list[int]:
        if (missing := pages - self._allocator.free_pages) > 0:
            evicted = self._cache.evict(missing)
            self.evicted_pages += len(evicted)
            self._allocator.free(evicted)
        return self._allocator.allocate(pages)

    def _defer_free(self, freed: DeferredFree, owner: Request) -> None:
        fences = self._steps_in_flight
        if owner.transfers:
            fences = fences | set(filter(self._leases.is_open, owner.transfers))
        self._hold_or_free(freed, fences)

    def _hold_or_free(self, freed: DeferredFree, fences: Collection[Fence]) -> None:
        if fences:
            self._leases.hold(freed, fences)
        else:
            self._free_now(freed)

    def _pass(self, fence: Fence) -> None:
        for freed in self._leases.passed(fence):
            self._free_now(freed)

    def _free_now(self, freed: DeferredFree) -> None:
        pages = freed.page_ids
        if freed.lock is not None:
            release = self._cache.unlock if freed.trusted else self._cache.forget
            pages = [*pages, *release(freed.lock)]
        self._allocator.free(pages)
        if freed.row is not None:
            self._free_rows.append(freed.row)
            if freed.row_announced:
                self._dropped_rows.append(freed.row)


def _fence_of(transfer: Fence) -> Fence:
    """A transfer's fence; fences of steps are numbers, so it equals none of them."""
    return "transfer", transfer
