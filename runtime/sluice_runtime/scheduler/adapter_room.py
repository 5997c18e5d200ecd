"""Which adapters the next step may have rows of: at most so many different ones, those of the rows
that run among them.

A request whose adapter finds no room is passed over, and others go on. Once it has waited for long
it claims room: of the adapters in use, the one with the fewest rows takes no new requests until its
last row has ended. The smallest number of rows can only fall meanwhile, so room comes with the end
of answers that run now. Pure; counts nothing before it is asked about an adapter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Final

from sluice_runtime.scheduler.request import Request

CLAIM_SECONDS: Final = 5.0
"""How long a request waits for room beside others before it claims some."""


class AdapterRoom:
    """Made anew for each step; told of every request that joins it."""

    def __init__(self, most: int, holding: Iterable[Request], now: float) -> None:
        """`holding`: requests that have rows."""
        self._most = most
        self._holding = holding
        self._now = now
        self._yielding: dict[str, str] = {}
        """By adapter that claims room, the one that makes it."""

    def admits(self, request: Request) -> bool:
        """Whether there is room for its adapter; requests come in the order of admission."""
        adapter = request.adapter
        if not adapter:
            return True
        if adapter in self._rows:
            return adapter not in self._yielding.values()
        if len(self._rows) < self._most:
            return True
        if adapter not in self._yielding and self._is_overdue(request):
            self._claim(adapter)
        return False

    def add(self, request: Request) -> None:
        """It joins the step."""
        if request.adapter:
            self._rows[request.adapter] += 1

    @cached_property
    def _rows(self) -> Counter[str]:
        """How many rows each adapter has."""
        return Counter(request.adapter for request in self._holding if request.adapter)

    def _is_overdue(self, request: Request) -> bool:
        return request.waiting_since_seconds < self._now - CLAIM_SECONDS

    def _claim(self, adapter: str) -> None:
        taken = self._yielding.values()
        left = [(rows, name) for name, rows in self._rows.items() if name not in taken]
        if left:
            self._yielding[adapter] = min(left)[1]


def adapter_refusal(key: str, loaded: Collection[str]) -> str | None:
    """Why no request with an adapter is taken, for a person; None when it is."""
    if not key or key in loaded:
        return None
    return f"adapter {key} is not loaded here; loaded: {', '.join(sorted(loaded)) or 'none'}"
