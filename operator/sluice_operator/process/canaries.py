"""Asks the routers of services with a canary what they count for it, every few seconds, also of
services that are not scaled. The last answers are kept in memory; reconciles judge by them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import ServiceLoad

from sluice_operator.autoscale.query import look_of
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.scaled import LOOKS, Look

LOOK_SECONDS: Final = 10.0
AskForLoad = Callable[[Iterable[str]], Awaitable[tuple[ServiceLoad, ...]]]
"""Reads the load reports of routers, without those that do not answer."""


@dataclass
class _Canary:
    shares: Mapping[Role, CanaryShare]
    routers: tuple[str, ...]
    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=LOOKS))


class CanaryLoop:
    """Looks at every canary that is to be judged; implements `CanaryLooks`."""

    def __init__(self, query: AskForLoad, changed: Callable[[Key], None], clock: Clock) -> None:
        """`changed`: called with a service that has looks to judge by."""
        self._query = query
        self._changed = changed
        self._clock = clock
        self._canaries: dict[Key, _Canary] = {}

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One look at every canary, all at the same time."""
        await asyncio.gather(*(self._look(*item) for item in self._canaries.items()))

    def follow(
        self, key: Key, shares: Mapping[Role, CanaryShare], routers: tuple[str, ...] = ()
    ) -> None:
        """Notes the routers to ask; see `CanaryLooks`."""
        canary = self._canaries.get(key)
        if not shares:
            self._canaries.pop(key, None)
        elif canary is None or canary.shares != shares:
            self._canaries[key] = _Canary(shares, routers)
        else:
            canary.routers = routers

    def last_looks(self, key: Key) -> tuple[Look, ...]:
        """The last looks; see `CanaryLooks`."""
        canary = self._canaries.get(key)
        return tuple(canary.looks) if canary else ()

    async def _look(self, key: Key, canary: _Canary) -> None:
        routers = canary.routers
        loads = await self._query(routers)
        canary.looks.append(look_of(loads, self._clock.now(), len(routers)))
        self._changed(key)
