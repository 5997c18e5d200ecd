"""Which cached prefixes go first when pages are needed: a registry of ranks.

The lowest rank goes first. A rank is one integer, and must not fall while its node stays in the
tree: the tree looks again only at what comes up. Whatever the order, only what nobody uses goes,
and a prefix after all that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

TICKS: Final = 1 << 48
"""More than there ever are."""


class Cached(Protocol):
    """What is asked of a node of the prefix tree."""

    @property
    def made(self) -> int:
        """Tick at which its pages came into the tree."""
        ...

    @property
    def used(self) -> int:
        """Tick at which a request last began or ceased to use it."""
        ...

    @property
    def uses(self) -> int:
        """Requests that have used it, the one that computed it among them."""
        ...


Rank = Callable[[Cached], int]


def least_recently_used(node: Cached) -> int:
    """Good as a default: what was used longest ago goes first."""
    return node.used


def least_frequently_used(node: Cached) -> int:
    """Good where few prefixes are asked for again and again: what the fewest requests have used
    goes first, of equal ones the least recently used."""
    return node.uses * TICKS + node.used


def first_in_first_out(node: Cached) -> int:
    """Good for comparing against: what came first goes first, however often it is used."""
    return node.made


def segmented_least_recently_used(node: Cached) -> int:
    """Good where most prompts come once: what no second request has used goes first, in each of
    the two halves the least recently used."""
    return (node.uses > 1) * TICKS + node.used


EVICTIONS: Final[Mapping[str, Rank]] = {
    "lru": least_recently_used,
    "lfu": least_frequently_used,
    "fifo": first_in_first_out,
    "slru": segmented_least_recently_used,
}
"""By the name that `prefixEvictionPolicy` has for it."""
