"""What must hold between any two steps; only a bug of ours can break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.prefix_cache import Lock, Node, PrefixCache
from sluice_runtime.scheduler.request import Phase, Request


class DeferredFree(Protocol):
    """What waits until nobody uses it."""

    @property
    def page_ids(self) -> list[int]: ...
    @property
    def row(self) -> int | None: ...
    @property
    def lock(self) -> Lock | None: ...


def check_integrity(
    requests: Collection[Request],
    deferred: Iterable[DeferredFree],
    allocator: PageAllocator,
    cache: PrefixCache,
    free_rows: Sequence[int],
) -> None:
    """Pages and rows are free, cached, or held by exactly one; who waits holds nothing."""
    locks = [lock for entry in (*requests, *deferred) if (lock := entry.lock)]
    nodes = _check_tree(cache, locks)
    private = [page for entry in deferred for page in entry.page_ids]
    for request in requests:
        _check_request(request)
        private += request.page_ids[request.lock.pages if request.lock else 0 :]
    held = [*private, *(page for node in nodes for page in node.page_ids)]
    assert len(set(held)) == len(held) == allocator.held_pages, "a page leaked or is shared"
    available = allocator.free_pages + cache.evictable_pages
    assert available + cache.protected_pages + len(private) == allocator.total_pages
    rows = [entry.row for entry in (*requests, *deferred) if entry.row is not None]
    assert not set(rows) & set(free_rows), "a row is held and free"
    assert len(set(rows)) == len(rows), "a row is held twice"
    assert sum(request.phase is Phase.PREFILLING for request in requests) <= 1


def _check_tree(cache: PrefixCache, locks: Iterable[Lock]) -> Collection[Node]:
    """Locks cover whole paths, and the counts are the nodes'; returns every node there is."""
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


def path_of(lock: Lock) -> list[Node]:
    """From the end of the locked path up to its namespace."""
    path, node = [], lock.node
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path
