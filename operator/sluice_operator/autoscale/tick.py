"""One tick of one service: query its load → decide → carry out → report.

Recent samples and decisions are kept in memory, by service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import KEPT_SECONDS, History, Tick, answered_lately
from sluice_autoscaler.sample import EngineSample, Sample
from sluice_autoscaler.settings import ScalingSettings
from sluice_contract.cluster.labels import Role

from sluice_operator.apply.plan import Event
from sluice_operator.autoscale.events import ScalingOutcome, is_news, scale_events, scaling_of
from sluice_operator.autoscale.inventory import ScalingInventory
from sluice_operator.autoscale.query import LoadQuery, sample_of
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import PoolPods, ScaledService, Scaling

TICK_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 120.0
"""Seconds for which a service without requests is not looked at; the first request ends them."""


class TickJournals(Protocol):
    """Keeps samples and decisions of ticks."""

    def add(self, key: Key, live: Manifest, settings: ScalingSettings, tick: Tick) -> None: ...

    async def last_ticks(self, live: Manifest) -> tuple[Tick, ...]: ...


CarryOut = Callable[[ScaledService, Mapping[Role, PoolPods], Decision], Awaitable[ScalingOutcome]]
Record = Callable[[Manifest, Iterable[Event]], Awaitable[None]]
"""Records events on an object."""


@dataclass
class TickMemory:
    """State of a service that is kept between two ticks."""

    unix_offset_seconds: float
    """Offset from the monotonic clock to Unix time at the first tick. Samples carry this Unix time,
    so the next operator process can use them, and a changed system clock does no harm."""
    history: History = field(default_factory=History)
    scaling: Scaling | None = None
    """Last reported scaling."""
    reported_at_seconds: float = 0.0
    is_quiet: bool = False
    """Whether there was nothing to do and no pool can shrink."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that ends the quiet wait."""


@dataclass(frozen=True)
class ScalingTick:
    """Scales services, one tick of one service at a time."""

    inventory: ScalingInventory
    query: LoadQuery
    carry_out: CarryOut
    record: Record
    journals: TickJournals
    decided: Callable[[Decision], None]
    """Counts decisions."""
    changed: Callable[[Key], None]
    """Called with a service whose status needs a new write."""
    clock: Clock
    memories: dict[Key, TickMemory] = field(default_factory=dict)

    async def __call__(self, key: Key) -> float:
        """Returns the seconds until the next look."""
        scaled = self.inventory.service(key)
        if scaled is None:
            return TICK_SECONDS
        before = await self._remembered(key, scaled)
        if before.is_quiet and await self._slept(scaled, before.wake):
            before.is_quiet = False
            return 0.0  # the service is another one now
        loads = await self.query(scaled.routers)
        now = self.inventory.service(key)
        if now is None or now.pools.keys() != scaled.pools.keys():
            return 0.0  # its mode has changed in the meantime
        seconds = self.clock.monotonic() + before.unix_offset_seconds
        sample = sample_of(loads, self.inventory.pool_samples(key), seconds)
        settings = self._settings(key, scaled)
        tick = Tick(sample, decide(settings, before.history, sample))
        outcome = await self._carried_out(key, now, tick.decision)
        before.is_quiet = is_quiet(settings, sample, tick.decision)
        before.history = before.history.with_tick(tick)
        self.decided(tick.decision)
        self.journals.add(key, scaled.live, settings, tick)
        await self.record(scaled.live, scale_events(tick.decision, outcome))
        self._report(key, before, tick, outcome)
        return TICK_SECONDS

    async def _carried_out(
        self, key: Key, scaled: ScaledService, decision: Decision
    ) -> ScalingOutcome:
        """Carries out the decision, unless another scaler owns a pool."""
        if rivals := self.inventory.rivals(key):
            return ScalingOutcome(rivals=rivals)
        outcome = await self.carry_out(scaled, self.inventory.pods(key), decision)
        for written in outcome.written:
            self.inventory.replicas_written(key, written)
        return outcome

    def _report(self, key: Key, before: TickMemory, tick: Tick, outcome: ScalingOutcome) -> None:
        after = scaling_of(tick, outcome, self.clock.now(), answered_lately(before.history))
        now = self.clock.monotonic()
        if is_news(before.scaling, after, tick.decision, now - before.reported_at_seconds):
            before.scaling, before.reported_at_seconds = after, now
            self.changed(key)

    async def _slept(self, scaled: ScaledService, wake: asyncio.Event) -> bool:
        """Sleeps for a while, or until a request comes; returns whether a request came."""
        quiet = asyncio.ensure_future(self.query.quiet(scaled.routers, QUIET_SECONDS))
        woken = asyncio.ensure_future(wake.wait())
        try:
            await asyncio.wait((quiet, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (quiet, woken):
                task.cancel()
            await asyncio.gather(quiet, woken, return_exceptions=True)
        changed = wake.is_set()
        wake.clear()
        return changed

    async def _remembered(self, key: Key, scaled: ScaledService) -> TickMemory:
        """The memory of a service, with earlier ticks, also those of an earlier operator
        process."""
        if key not in self.memories:
            ticks = await self.journals.last_ticks(scaled.live)
            now = self.clock.now().timestamp()
            lately = (tick for tick in ticks if 0 <= now - tick.sample.time_seconds < KEPT_SECONDS)
            offset = now - self.clock.monotonic()
            self.memories[key] = TickMemory(offset, History(tuple(lately)))
        return self.memories[key]

    def _settings(self, key: Key, scaled: ScaledService) -> ScalingSettings:
        """Settings of the spec, with the GPUs that the budget leaves for scaled pools."""
        budget = scaled.settings.gpu_budget
        if budget is None:
            return scaled.settings
        left = max(0, budget - self.inventory.fixed_gpus(key))
        return replace(scaled.settings, gpu_budget=left)


def is_quiet(settings: ScalingSettings, sample: Sample, decision: Decision) -> bool:
    """Whether only a request can change what is decided: nothing runs or waits, every pool has the
    fewest engines, and its pods are as they should be."""
    if sample.engines is None or sample.waiting_requests or decision.changes:
        return False
    least = all(
        sample.pools[role].replicas == limits.minimum for role, limits in settings.pools.items()
    )
    settled = all(
        pool.ready == pool.replicas and not pool.surplus for pool in sample.pools.values()
    )
    return least and settled and all(map(_is_idle, sample.engines))


def _is_idle(engine: EngineSample) -> bool:
    return engine.figures.requests == 0
