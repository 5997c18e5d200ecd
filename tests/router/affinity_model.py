"""A seeded model of a service: routers that pick, engines with slots and a cache of prefixes."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from sluice_contract.cluster.labels import Role
from sluice_router.engines import Endpoint, EngineState, Phase, ReceivedReport
from sluice_router.pick import MARGINS, Affinity, AffinityReason, Draw, pick

from tests.router.fakes import load_report

ENGINES, ROUTERS, SLOTS = 8, 2, 16
CACHED_PREFIXES = 40
"""In one engine; the least recently used is evicted."""
HIT_SECONDS, MISS_SECONDS = 2.0, 2.5
"""How long a request is in an engine."""
REPORT_SECONDS = 1.0


@dataclass
class Engine:
    """What an engine does with a request."""

    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    running: int = 0
    busy_seconds: float = 0.0
    most: int = 0

    def serve(self, prefix: int) -> bool:
        """Whether it has the prefix, which it has from now on."""
        hit = prefix in self.cached
        self.cached[prefix] = None
        self.cached.move_to_end(prefix)
        if len(self.cached) > CACHED_PREFIXES:
            self.cached.popitem(last=False)
        self.running += 1
        self.most = max(self.most, self.running)
        return hit


@dataclass
class Result:
    """What came of it."""

    hit_rate: float
    shares: list[float]
    """Requests that were in each engine, averaged over time, by its slots."""
    most: int
    """Requests in one engine at one time."""

    @property
    def mean(self) -> float:
        """Of the shares."""
        return sum(self.shares) / len(self.shares)

    @property
    def unevenness(self) -> float:
        """The largest share by the mean."""
        return max(self.shares) / self.mean


def simulate(
    draw_prefix: Callable[[Random], int],
    reason: AffinityReason | None,
    *,
    per_second: float,
    seconds: float = 60.0,
    seed: int = 0,
) -> Result:
    """Poisson arrivals, each at a random router."""
    source = Random(seed)
    engines = [Engine() for _ in range(ENGINES)]
    routers = [[_idle(number) for number in range(ENGINES)] for _ in range(ROUTERS)]
    ends: list[tuple[float, int, int]] = []
    counts: Counter[bool] = Counter()
    now, next_report = 0.0, 0.0
    while (now := now + source.expovariate(per_second)) < seconds:
        while ends and ends[0][0] <= now:
            _, router, number = heapq.heappop(ends)
            engines[number].running -= 1
            _sent(routers[router], number, -1)
        if now >= next_report:
            next_report = now + REPORT_SECONDS
            routers = [[_told(state, engines, now) for state in states] for states in routers]
        prefix, router = draw_prefix(source), source.randrange(ROUTERS)
        affinity = reason and Affinity(prefix.to_bytes(4, "big"), reason, MARGINS[reason])
        draw = Draw(source.random(), source.random(), source.random())
        found = pick(routers[router], now, draw, stale_seconds=5.0, affinity=affinity).engine
        assert found is not None
        number = int(found.endpoint.name)
        hit = engines[number].serve(prefix)
        counts[hit] += 1
        duration = HIT_SECONDS if hit else MISS_SECONDS
        engines[number].busy_seconds += duration
        _sent(routers[router], number, 1)
        heapq.heappush(ends, (now + duration, router, number))
    shares = [engine.busy_seconds / seconds / SLOTS for engine in engines]
    return Result(counts[True] / counts.total(), shares, max(engine.most for engine in engines))


def _idle(number: int) -> EngineState:
    return EngineState(Endpoint(str(number), f"http://e{number}", Role.MIXED, Phase.READY))


def _sent(states: list[EngineState], number: int, change: int) -> None:
    states[number] = replace(states[number], inflight=states[number].inflight + change)


def _told(state: EngineState, engines: list[Engine], now: float) -> EngineState:
    running = engines[int(state.endpoint.name)].running
    report = load_report(running_requests=running, max_running_requests=SLOTS)
    return replace(state, received=ReceivedReport(report, now, state.inflight))
