"""A scaled service with routers and pods that tests make up, and what is written of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import Tick
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineLoad, LoadReport, ServiceLoad
from sluice_operator.apply.plan import Event
from sluice_operator.autoscale.events import ScalingOutcome, Written
from sluice_operator.autoscale.inventory import ScalingInventory
from sluice_operator.autoscale.tick import ScalingTick
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.scaled import PoolPods, ScaledPool, ScaledService

from tests.figures import with_figures
from tests.operator.examples import service
from tests.operator.virtual_time import FakeClock

KEY = Key(INFERENCE_SERVICE.kind, "default", "chat")
BOTH = (Role.PREFILL, Role.DECODE)


def report(role: Role = Role.MIXED, **values: Any) -> LoadReport:
    """The load report of an engine with nothing to do, but for `values`."""
    idle: dict[str, Any] = {
        "role": role, "epoch": "e", "time_seconds": 0.0, "draining": False, "queued_requests": 0,
        "queued_tokens": 0, "running_requests": 0, "max_running_requests": 16,
        "max_queued_requests": 64,
        "kv_pages_total": 100, "kv_pages_free": 100, "kv_pages_evictable": 0,
        "page_size_tokens": 16, "queued_work_seconds": 0.0,
    }  # fmt: skip
    return LoadReport(**with_figures(idle | values))


def row(name: str, age_seconds: float = 0.5, **values: Any) -> EngineLoad:
    """A router's row of a ready engine; `values`: of its report."""
    return EngineLoad(
        name=name,
        url=f"http://{name}",
        condition="ready",
        inflight_requests=0,
        report=report(**values),
        report_age_seconds=age_seconds,
    )


def load(*engines: EngineLoad, waiting: int = 0, **values: Any) -> ServiceLoad:
    """What a router says."""
    fields: dict[str, Any] = {"draining": False, "discovered": True} | values
    return ServiceLoad(waiting_requests=waiting, engines=engines, **fields)


def scaled_service(
    replicas: int = 1, roles: Iterable[Role] = (Role.MIXED,), least: int = 0, **settings: Any
) -> ScaledService:
    """The service `chat`, whose pools move between `least` and 9."""
    pools = {role: ScaledPool(f"chat-{role}", f"uid-{role}", replicas, 1, "CPU") for role in roles}
    limits = dict.fromkeys(pools, PoolLimits(least, 9, 1))
    return ScaledService(
        service(), ScalingSettings(**{"pools": limits} | settings), pools, ("10.0.0.1", "10.0.0.2")
    )


async def _nothing() -> None:
    pass


@dataclass
class World:
    """Routers that say `loads`, and an API server that keeps what is written, or fails."""

    scaled: ScaledService
    loads: tuple[ServiceLoad, ...] = ()
    fails: RequestError | None = None
    comes: ScalingOutcome | None = None
    """Of every decision, whatever it is."""
    writes: list[tuple[Role, int]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    slept: int = 0
    on_quiet: Callable[[], Awaitable[None]] = _nothing
    noted: list[Tick] = field(default_factory=list)
    earlier: tuple[Tick, ...] = ()
    decided: list[Decision] = field(default_factory=list)
    told: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    generation: int = 1

    def __post_init__(self) -> None:
        self.inventory = ScalingInventory(self.clock)
        self.inventory.service_seen(KEY, self.scaled)
        for role, pool in self.scaled.pools.items():
            self.pods(role, pool.replicas)
        self.scaling_tick = ScalingTick(
            self.inventory,
            self,
            self._carry_out,
            self._record,
            self,
            self.decided.append,
            self._changed,
            self.clock,
        )

    def pods(self, role: Role, replicas: int, **counts: Any) -> None:
        """The pods of a pool as its reconcile counts them: as many as are asked for, ready."""
        found: dict[str, Any] = {"live": replicas, "ready": replicas, "planned": replicas} | counts
        self.inventory.pool_seen(KEY, role, PoolPods(replicas, self.generation, **found))

    async def tick(self, times: int = 1) -> float:
        for _ in range(times):
            seconds = await self.scaling_tick(KEY)
            self.clock.elapsed_seconds += seconds
        return seconds

    def add(self, key: Key, live: Manifest, settings: ScalingSettings, tick: Tick) -> None:
        """As the journal does."""
        self.noted.append(tick)

    async def last_ticks(self, live: Manifest) -> tuple[Tick, ...]:
        return self.earlier

    async def quiet(self, routers: Iterable[str], seconds: float) -> None:
        """As routers do: nothing comes, unless a test says otherwise."""
        self.slept += 1
        self.clock.elapsed_seconds += seconds
        await self.on_quiet()

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        assert tuple(routers) == self.scaled.routers
        return self.loads

    async def _carry_out(
        self, scaled: ScaledService, pods: Mapping[Role, PoolPods], decision: Decision
    ) -> ScalingOutcome:
        if self.comes is not None:
            return self.comes
        if self.fails is not None and decision.changes:
            return ScalingOutcome(failed=self.fails)
        written = []
        for change in decision.changes:
            self.generation += 1
            written.append(Written(change.role, change.desired, self.generation))
            self.writes.append((change.role, change.desired))
        return ScalingOutcome(tuple(written))

    async def _record(self, live: Manifest, events: Iterable[Event]) -> None:
        self.events += [f"{event.reason}: {event.message}" for event in events]

    def _changed(self, key: Key) -> None:
        assert key == KEY
        self.told += 1
