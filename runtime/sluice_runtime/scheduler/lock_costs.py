"""What locks on the prefix tree would take from the evictable pages, and what they would give back.

Pure forecasts, so that admission and retraction are planned without touching the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sluice_runtime.scheduler.prefix_cache import Lock, Match, Node


class Locking:
    """What locking some matches, one after another, would take from the evictable pages."""

    def __init__(self) -> None:
        self._pages: dict[Node, int] = {}

    def cost(self, match: Match) -> int:
        """Pages that are evictable now and would not be; not those of matches added before."""
        return sum(
            max(0, pages - self._pages.get(node, 0))
            for node, pages in _pages_by_node(match)
            if not node.locks
        )

    def add(self, match: Match) -> None:
        for node, pages in _pages_by_node(match):
            self._pages[node] = max(pages, self._pages.get(node, 0))


class Unlocking:
    """What giving some locks back, one after another, would make evictable; but for `kept`, which
    someone else is going to lock."""

    def __init__(self, kept: Match | None = None) -> None:
        self._given: Counter[Node] = Counter()
        self._kept = dict(_pages_by_node(kept)) if kept else {}

    def add(self, lock: Lock) -> int:
        """Pages that this one's return adds."""
        pages, node = 0, lock.node
        while node.parent is not None:
            self._given[node] += 1
            if self._given[node] == node.locks:
                pages += len(node.page_ids) - self._kept.get(node, 0)
            node = node.parent
        return pages


def _pages_by_node(match: Match) -> Iterable[tuple[Node, int]]:
    for node in match.path[:-1]:
        yield node, len(node.page_ids)
    if match.path:
        yield match.path[-1], match.last_pages
