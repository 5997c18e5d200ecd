"""What simulator tests share: settings, a cost that is easy to reckon with, a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_simulator.costs import Coefficients, Cost
from sluice_simulator.device import SimulatedDevice
from sluice_simulator.replay import Options, Replay, Replayed
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

POOL_TOKENS: Final = 262_144
SETTINGS: Final = SchedulerSettings(
    limits=Limits(POOL_TOKENS, POOL_TOKENS),
    page_size=16,
    chunk_size=2_048,
    max_prefill_tokens=16_384,
    min_prefill_tokens=16,
    max_running_requests=256,
    max_queued_requests=100_000,
    mixed=True,
)
COST: Final = Cost(
    name="round",
    source="made up: 10 ms a step, 10 us a token",
    context_length=POOL_TOKENS,
    kv_pool_tokens=POOL_TOKENS,
    coefficients=Coefficients(step=0.01, token=1e-5, row=1e-5, product=0.0, context=0.0),
)


def settings(**changes: Any) -> SchedulerSettings:
    """SETTINGS with changes; `pool_tokens` is the pool and the context length."""
    if pool := changes.pop("pool_tokens", None):
        changes["limits"] = Limits(pool, pool)
    return replace(SETTINGS, **changes)


def requests(*sizes: tuple[float, int, int]) -> Trace:
    """A trace of (arrival, prompt tokens, output tokens)."""
    return trace_of("made", [TraceRequest(*size) for size in sizes])


def replay(trace: Trace, how: SchedulerSettings = SETTINGS, **options: Any) -> Replayed:
    cost = options.pop("cost", COST)
    device = SimulatedDevice(trace.requests, cost, overlap=options.pop("overlap", False))
    leaper = device if options.pop("fleet", False) else None
    return Replay(trace, how, device, Options(**options), leaper).run()
