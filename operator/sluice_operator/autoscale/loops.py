"""A loop for each scaled service, so that no service waits for another's routers.

Implements `Autoscaling`, the autoscaler as reconciles see it. Loops begin, pause and end here;
`tick` is one iteration.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from sluice_autoscaler.sample import PoolSample
from sluice_contract.cluster.labels import Role

from sluice_operator.autoscale.tick import TICK_SECONDS, ScalingTick
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.log import fields
from sluice_operator.scaled import PoolPods, ScaledPool, ScaledService, Scaling

FAILURE: Final = Backoff(first_seconds=2.0, cap_seconds=60.0)

logger = logging.getLogger(__name__)


class Autoscaler:
    """Ticks every scaled service, until it is no longer scaled. Loops run inside `run`."""

    def __init__(self, tick: ScalingTick, clock: Clock, gone: Callable[[Key], None]) -> None:
        """`gone`: called with a service that was deleted."""
        self._tick = tick
        self._clock = clock
        self._gone = gone
        self._loops: dict[Key, asyncio.Task[None]] = {}
        self._scaled: set[Key] = set()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Runs until it is cancelled or a loop fails, and ends every loop then."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for key in self._scaled:
                    self._begin(key)
                await asyncio.Event().wait()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def service_seen(self, key: Key, scaled: ScaledService | None) -> None:
        """Notes the service, and begins or ends its loop; see `Autoscaling`."""
        before = self._tick.inventory.service(key)
        self._tick.inventory.service_seen(key, scaled)
        if before and scaled and key in self._tick.memories and _differ(before, scaled):
            self._tick.memories[key].wake.set()
        if scaled is None:
            self._end(key)
        elif key not in self._scaled:
            self._begin(key)

    def pool_seen(self, key: Key, role: Role, pods: PoolPods) -> None:
        """Notes the pods of a pool; see `Autoscaling`."""
        self._tick.inventory.pool_seen(key, role, pods)

    def forget(self, key: Key) -> None:
        """Ends the service's loop and forgets it; see `Autoscaling`."""
        self._end(key)
        self._tick.inventory.forget(key)
        self._gone(key)

    def last_scaling(self, key: Key) -> Scaling | None:
        """The last decision about the service; see `Autoscaling`."""
        memory = self._tick.memories.get(key)
        return memory.scaling if memory else None

    def pools(self) -> Iterator[tuple[Key, ScaledPool, PoolSample, int]]:
        """Every scaled pool, its pods, and how many engines were decided last."""
        inventory = self._tick.inventory
        for key, memories in self._tick.memories.items():
            scaled = inventory.service(key)
            if scaled is None or not memories.history.ticks:
                continue
            decided = memories.history.ticks[-1].decision.pools
            for role, pods in inventory.pool_samples(key).items():
                if role in decided:
                    yield key, scaled.pools[role], pods, decided[role].desired

    def _begin(self, key: Key) -> None:
        self._scaled.add(key)
        if self._group is not None:
            self._loops[key] = self._group.create_task(self._loop(key))

    def _end(self, key: Key) -> None:
        self._scaled.discard(key)
        if (loop := self._loops.pop(key, None)) is not None:
            loop.cancel()
        self._tick.memories.pop(key, None)

    async def _loop(self, key: Key) -> None:
        failures = 0
        await self._clock.sleep(_offset_seconds(key))
        while True:
            try:
                seconds, failures = await self._tick(key), 0
            except Exception:
                failures += 1
                seconds = FAILURE.delay_seconds(failures, 1.0)
                logger.warning("tick failed", extra=_place(key, seconds), exc_info=True)
            await self._clock.sleep(seconds)


def _differ(before: ScaledService, now: ScaledService) -> bool:
    return (before.settings, before.routers) != (now.settings, now.routers)


def _offset_seconds(key: Key) -> float:
    """Delay of a service's first tick, which spreads services over the tick's period."""
    return TICK_SECONDS * (zlib.crc32(str(key).encode()) % 1024) / 1024


def _place(key: Key, seconds: float) -> dict[str, object]:
    return fields(namespace=key.namespace, name=key.name, again_seconds=seconds)
