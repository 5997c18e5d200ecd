"""One look at one service: query its load → decide → carry out → tell.

Knows no details of any step. What was seen and decided lately is kept in memory, by service.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.settings import Settings

from sluice_operator.apply.plan import Event
from sluice_operator.autoscale.carry_out import Outcome
from sluice_operator.autoscale.known import Known
from sluice_operator.autoscale.query import LoadQuery
from sluice_operator.autoscale.sample import sample_of
from sluice_operator.autoscale.tell import is_news, scale_events, scaling_of
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import ScaledService, Scaling

TICK_SECONDS: Final = 2.0

CarryOut = Callable[[ScaledService, Decision], Awaitable[Outcome]]
Record = Callable[[Manifest, Iterable[Event]], Awaitable[None]]
"""Records events on an object."""


@dataclass
class Ticked:
    """What is remembered of a service between two ticks."""

    history: History = field(default_factory=History)
    scaling: Scaling | None = None
    """As it was last told."""


@dataclass(frozen=True)
class Ticker:
    """Scales services, one tick of one service at a time."""

    known: Known
    query: LoadQuery
    carry_out: CarryOut
    record: Record
    changed: Callable[[Key], None]
    """Called with a service whose status is to be written anew."""
    clock: Clock
    ticked: dict[Key, Ticked] = field(default_factory=dict)

    async def __call__(self, key: Key) -> float:
        """Returns after how many seconds to look again."""
        scaled = self.known.service(key)
        if scaled is None:
            return TICK_SECONDS
        before = self.ticked.setdefault(key, Ticked())
        loads = await self.query(scaled.routers)
        sample = sample_of(loads, self.known.pool_samples(key), self.clock.monotonic())
        decision = decide(self._settings(key, scaled), before.history, sample)
        outcome = await self.carry_out(scaled, decision)
        for role, replicas, generation in outcome.written:
            self.known.replicas_written(key, role, replicas, generation)
        before.history = before.history.with_tick(Tick(sample, decision))
        await self.record(scaled.live, scale_events(decision, outcome.written))
        after = scaling_of(sample, decision, outcome, self.clock.now())
        if is_news(before.scaling, after, decision):
            before.scaling = after
            self.changed(key)
        return TICK_SECONDS

    def _settings(self, key: Key, scaled: ScaledService) -> Settings:
        """Those of the spec, with what the budget leaves to the pools that are scaled."""
        budget = scaled.settings.gpu_budget
        if budget is None or not scaled.fixed_gpus:
            return scaled.settings
        left = max(0, budget - self.known.fixed_gpus(key))
        return replace(scaled.settings, gpu_budget=left)
