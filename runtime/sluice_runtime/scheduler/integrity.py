"""What must hold between any two steps; only a bug of ours can break it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.request import Phase, Request


def check_integrity(
    requests: Collection[Request], allocator: PageAllocator, free_rows: Sequence[int]
) -> None:
    """Pages and rows are each free or held by exactly one request; who waits holds nothing."""
    held = [page for request in requests for page in request.page_ids]
    assert len(set(held)) == len(held) == allocator.held_pages, "a page leaked or is shared"
    assert allocator.free_pages + allocator.held_pages == allocator.total_pages
    rows = [request.row for request in requests if request.row is not None]
    assert not set(rows) & set(free_rows), "a row is held and free"
    assert len(set(rows)) == len(rows), "a row is held twice"
    assert sum(request.phase is Phase.PREFILLING for request in requests) <= 1
    for request in requests:
        waits = request.phase is Phase.WAITING
        assert request.phase is not Phase.ENDED, f"{request.request_id} ended and is kept"
        assert waits == (request.row is None), f"{request.request_id} waits with a row"
        assert waits <= (not request.page_ids), f"{request.request_id} waits with pages"
