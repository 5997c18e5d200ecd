"""Orders in which cached prefixes are evicted, as ranks of the prefix tree's nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

TICKS: Final = 1 << 48
"""Limit that no tick reaches, so that a rank can carry a tick in its low bits."""


class Usage(Protocol):
    """Properties of a node that a rank reads."""

    made: int
    """Tick at which the node's pages were added."""
    used: int
    """Tick of its last lock or unlock."""
    uses: int
    """Number of locks that the node has had."""


Rank = Callable[[Usage], int]
"""Eviction rank; the node with the lowest rank is evicted first. A node's rank must not fall while
it stays in the tree, which rechecks only candidates about to be evicted."""


def least_recently_used(node: Usage) -> int:
    """Good as a default: the least recently used prefix is evicted first."""
    return node.used


def least_frequently_used(node: Usage) -> int:
    """Good if a few prefixes are requested again and again: the prefix that the fewest requests
    have used is evicted first, and of equal ones the least recently used."""
    return node.uses * TICKS + node.used


def first_in_first_out(node: Usage) -> int:
    """Good for comparison: the oldest prefix is evicted first, however often it is used."""
    return node.made


def segmented_least_recently_used(node: Usage) -> int:
    """Good if most prompts come once: prefixes that no second request has used are evicted before
    all others, and within both groups the least recently used first."""
    return (node.uses > 1) * TICKS + node.used


EVICTIONS: Final[Mapping[str, Rank]] = {
    "lru": least_recently_used,
    "lfu": least_frequently_used,
    "fifo": first_in_first_out,
    "slru": segmented_least_recently_used,
}
"""Eviction orders by their name in `prefixEvictionPolicy`."""
