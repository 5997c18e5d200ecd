"""What requests hold: rows, pages and locks on cached prefixes. Taken here, and given back here.

One path gives back, whatever the reason. What a step in flight may still touch is handed out again
only when that step's results are in. Knows neither budgets nor the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

from sluice_runtime.scheduler.batch import PagesReplaced
from sluice_runtime.scheduler.eviction import EVICTIONS
from sluice_runtime.scheduler.integrity import check_integrity
from sluice_runtime.scheduler.pages import PageAllocator, pages_for
from sluice_runtime.scheduler.prefix_cache import Lock, Match, PrefixCache
from sluice_runtime.scheduler.request import Request, lock_of, row_of
from sluice_runtime.scheduler.settings import SchedulerSettings


class Retired(NamedTuple):
    """No request's any more; free once the steps that were in flight have landed."""

    page_ids: list[int]
    row: int | None = None
    lock: Lock | None = None
    trusted: bool = True
    """Whether the locked path may serve others."""


class Holdings:
    """The pool's free list, the prefix tree and the rows."""

    def __init__(self, settings: SchedulerSettings, allocator: PageAllocator) -> None:
        self._page_size = settings.page_size
        self._keeps = settings.prefix_cache
        self._allocator = allocator
        self._cache = PrefixCache(settings.page_size, EVICTIONS[settings.eviction])
        self._free_rows = list(range(settings.max_running_requests))[::-1]
        self._in_flight: list[int] = []
        self._retired: deque[tuple[int, Retired]] = deque()
        self._dropped_rows: list[int] = []
        self._replaced: list[PagesReplaced] = []
        self.evicted_pages = 0
        """Since the start."""

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def total_pages(self) -> int:
        return self._allocator.total_pages

    @property
    def free_pages(self) -> int:
        return self._allocator.free_pages

    @property
    def evictable_pages(self) -> int:
        """Cached, and used by no one."""
        return self._cache.evictable_pages

    @property
    def available_pages(self) -> int:
        """Pages that can be taken now."""
        return self._allocator.free_pages + self._cache.evictable_pages

    def match(self, request: Request) -> Match:
        """The cached prefix of a waiting request: at most all tokens but the last, and none of a
        prompt that is to be scored."""
        return self._cache.match(request.namespace, request.key, self._most_matched(request))

    def matched_tokens(self, request: Request) -> int:
        """Leading tokens that are cached."""
        most = self._most_matched(request)
        return self._cache.matched_pages(request.namespace, request.key, most) * self._page_size

    def matched_path(self, request: Request) -> tuple[int, ...]:
        """Numbers of the tree's nodes that hold them."""
        return tuple(node.number for node in self.match(request).path)

    def take(self, matched: Sequence[tuple[Request, Match]]) -> None:
        """For each a row, its cached prefix, and pages for the rest of its prompt, also when it is
        cut. The match may be one from before another prefix was locked; it is made anew if that has
        cut its path. All prefixes are locked before the first page is taken, which may evict."""
        missing = 0
        for request, found in matched:
            match = found if self._cache.has(found) else self.match(request)
            request.row = self._free_rows.pop()
            request.page_ids = match.page_ids()
            request.lock = self._cache.lock(match)
            request.computed_tokens = request.prefilled_tokens = match.pages * self._page_size
            missing += pages_for(len(request.token_ids), self._page_size) - match.pages
        pages = iter(self._allocate(missing))
        for request, _ in matched:
            own = pages_for(len(request.token_ids), self._page_size) - len(request.page_ids)
            request.page_ids += islice(pages, own)

    def open_page(self, request: Request) -> int:
        """One more page."""
        return self.open_pages([request])[0]

    def open_pages(self, requests: Sequence[Request]) -> list[int]:
        """One more page for each."""
        pages = self._allocate(len(requests))
        for request, page in zip(requests, pages, strict=True):
            request.page_ids.append(page)
        return pages

    def keep(self, request: Request) -> None:
        """Lets others find what is computed of a request, in whole pages; pages that turn out to be
        duplicates are replaced in its row, and go."""
        if not self._keeps:
            return
        lock, size = lock_of(request), self._page_size
        first, last = lock.pages, request.landed_tokens // size
        if first == last:
            return
        key = request.key_of(first * size, last * size)
        canonical = self._cache.extend(lock, key, request.page_ids[first:last])
        if canonical:
            span = slice(first, first + len(canonical))
            duplicates, request.page_ids[span] = request.page_ids[span], canonical
            self._replaced.append(PagesReplaced(row_of(request), first, tuple(canonical)))
            self._retire(Retired(duplicates))

    def publishes(self, request: Request) -> bool:
        """Whether others will find what is computed of a request that has started."""
        return request.lock is not None and self._cache.grows(request.lock)

    def release(self, request: Request, *, trusted: bool = True) -> None:
        """Everything a request holds; what is computed stays in the tree, if it can be trusted."""
        if trusted:
            self.keep(request)
        lock = lock_of(request)
        self._retire(Retired(request.page_ids[lock.pages :], row_of(request), lock, trusted))
        request.page_ids, request.row, request.lock = [], None, None
        request.computed_tokens = request.prefilled_tokens = 0

    def flush(self) -> None:
        """Forgets all prefixes; running requests keep theirs to themselves."""
        self._allocator.free(self._cache.flush())

    def launched(self, step: int) -> None:
        """From now on a step may touch whatever is held."""
        self._in_flight.append(step)

    def landed(self, step: int) -> None:
        """The results of a step are in."""
        self._in_flight.remove(step)
        while self._retired and self._retired[0][0] <= step:
            self._give_back(self._retired.popleft()[1])

    def take_dropped_rows(self) -> tuple[int, ...]:
        """Rows that came free since the last call."""
        dropped, self._dropped_rows = tuple(self._dropped_rows), []
        return dropped

    def take_replaced_pages(self) -> tuple[PagesReplaced, ...]:
        """Changes of rows' pages since the last call."""
        replaced, self._replaced = tuple(self._replaced), []
        return replaced

    def check_integrity(self, requests: Collection[Request]) -> None:
        """Asserts that each page and each row is free, cached or someone's; never two of these."""
        retired = [entry for _, entry in self._retired]
        check_integrity(requests, retired, self._allocator, self._cache, self._free_rows)

    def _most_matched(self, request: Request) -> int:
        return 0 if request.scores_prompt else (len(request.token_ids) - 1) // self._page_size

    def _allocate(self, pages: int) -> list[int]:
        if (missing := pages - self._allocator.free_pages) > 0:
            evicted = self._cache.evict(missing)
            self.evicted_pages += len(evicted)
            self._allocator.free(evicted)
        return self._allocator.allocate(pages)

    def _retire(self, retired: Retired) -> None:
        if self._in_flight:
            self._retired.append((self._in_flight[-1], retired))
        else:
            self._give_back(retired)

    def _give_back(self, retired: Retired) -> None:
        pages = retired.page_ids
        if retired.lock is not None:
            give = self._cache.unlock if retired.trusted else self._cache.forget
            pages = [*pages, *give(retired.lock)]
        self._allocator.free(pages)
        if retired.row is not None:
            self._free_rows.append(retired.row)
            self._dropped_rows.append(retired.row)
