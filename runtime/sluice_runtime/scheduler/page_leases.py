"""What was given back while someone may still read or write it, until nobody does.

A fence stands for one such use: a step in flight, or a transfer of pages. A lease ends when all of
its fences have passed, in whatever order they do. Knows neither pages nor requests.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Fence = Hashable
Held = TypeVar("Held")


@dataclass(slots=True, eq=False)
class _Lease(Generic[Held]):
    held: Held
    fences: set[Fence]


class PageLeases(Generic[Held]):
    """What is held by fences."""

    def __init__(self) -> None:
        self._leases: dict[Fence, list[_Lease[Held]]] = {}
        """By open fence."""

    def __iter__(self) -> Iterator[Held]:
        """All that is held, each once."""
        seen: dict[int, Held] = {}
        for leases in self._leases.values():
            seen |= {id(lease): lease.held for lease in leases}
        return iter(seen.values())

    def __bool__(self) -> bool:
        """Whether anything is held."""
        return any(self._leases.values())

    def open(self, fence: Fence) -> None:
        """A use begins."""
        assert fence not in self._leases, f"fence {fence} is open"
        self._leases[fence] = []

    def is_open(self, fence: Fence) -> bool:
        return fence in self._leases

    def hold(self, held: Held, fences: Collection[Fence]) -> None:
        """Until all of `fences`, which are open and one at least, have passed."""
        lease = _Lease(held, set(fences))
        for fence in lease.fences:
            self._leases[fence].append(lease)

    def passed(self, fence: Fence) -> list[Held]:
        """A use is over; returns what nobody uses any more, in the order in which it was given."""
        ended = []
        for lease in self._leases.pop(fence):
            lease.fences.remove(fence)
            if not lease.fences:
                ended.append(lease.held)
        return ended
