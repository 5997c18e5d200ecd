"""Asserts what must hold of pages, rows and locks between any two steps, unless there is a bug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from sluice_runtime.scheduler.prefix_cache import Lock, PrefixCache, path_of
from sluice_runtime.scheduler.prefix_node import Node
from sluice_runtime.scheduler.request import Phase, Request


class Holder(Protocol):
    """Holder of pages, a row and a lock that were given back and are still in use."""

    @property
    def page_ids(self) -> list[int]: ...
    @property
    def row(self) -> int | None: ...
    @property
    def lock(self) -> Lock | None: ...


class PageCounts(Protocol):
    """Numbers of pages of a pool."""

    total_pages: int

    @property
    def free_pages(self) -> int: ...
    @property
    def held_pages(self) -> int: ...


def check_integrity(
    requests: Collection[Request],
    deferred: Iterable[Holder],
    allocator: PageCounts,
    cache: PrefixCache,
    free_rows: Sequence[int],
) -> None:
    """Asserts that each page and row is free, cached, or held exactly once, and that waiting
    requests hold nothing."""
    holders: list[Request | Holder] = [*requests, *deferred]
    locks = [lock for holder in holders if (lock := holder.lock)]
    nodes = _check_tree(cache, locks)
    private = [page for entry in deferred for page in entry.page_ids]
    for request in requests:
        _check_request(request)
        private += request.page_ids[request.lock.pages if request.lock else 0 :]
    in_use = [*private, *(page for node in nodes for page in node.page_ids)]
    assert len(set(in_use)) == len(in_use) == allocator.held_pages, "a page leaked or is shared"
    available = allocator.free_pages + cache.evictable_pages
    assert available + cache.protected_pages + len(private) == allocator.total_pages
    rows = [holder.row for holder in holders if holder.row is not None]
    assert not set(rows) & set(free_rows), "a row is held and free"
    assert len(set(rows)) == len(rows), "a row is held twice"
    assert sum(request.phase is Phase.PREFILLING for request in requests) <= 1


def _check_tree(cache: PrefixCache, locks: Iterable[Lock]) -> Collection[Node]:
    """Asserts that locks cover whole paths and that counts are right; returns all nodes."""
    locked = Counter(node for lock in locks for node in path_of(lock))
    nodes = {*cache.nodes(), *locked}
    assert all(node.locks == locked[node] for node in nodes), "a lock was lost or is left over"
    pages = Counter[bool]()
    for node in nodes:
        pages[node.locks > 0] += len(node.page_ids)
    assert (pages[True], pages[False]) == (cache.protected_pages, cache.evictable_pages)
    return nodes


def _check_request(request: Request) -> None:
    waits = request.phase in (Phase.WAITING, Phase.AWAITING_PAGES)
    assert request.phase is not Phase.ENDED, f"{request.request_id} ended and is kept"
    assert waits == (request.row is None), f"{request.request_id} waits with a row"
    assert waits == (request.lock is None), f"{request.request_id} waits with a lock"
    assert waits <= (not request.page_ids), f"{request.request_id} waits with pages"
    assert request.landed_tokens <= request.computed_tokens, f"{request.request_id} is ahead"
    if request.lock is not None:
        shared = [page for node in path_of(request.lock)[::-1] for page in node.page_ids]
        assert request.page_ids[: request.lock.pages] == shared, f"{request.request_id} strayed"
