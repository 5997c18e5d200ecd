"""How many engines each target needs, by measurements; the largest counts.

A pool shrinks only if the remaining engines, with a larger share of the load each (N / (N - 1)
without one of N), would stay well below the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.capacity import Promise, engines_for, engines_for_answers
from sluice_autoscaler.decision import Margin
from sluice_autoscaler.forecast import Forecast
from sluice_autoscaler.margin import margin_message
from sluice_autoscaler.measured import ItlModel, Measured
from sluice_autoscaler.settings import ScalingSettings

TOLERANCE: Final = 0.1
"""Fraction of extra load that a pool must be able to serve after it shrinks."""
GROWTH_TOLERANCE: Final = 0.05
"""Fraction of an engine by which demand may exceed a whole number before a pool grows."""
FULL_ROWS: Final = 0.9
"""Fraction of an engine's rows that running requests should fill."""
DRAIN_SECONDS: Final = 5.0
"""Seconds within which new engines should compute prompts that wait too long."""


@dataclass(frozen=True, slots=True)
class Want:
    """Engines that one target asks for."""

    engines: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as targets see it."""

    role: Role
    current: int
    now: Measured
    load: Forecast
    itl: ItlModel | None
    kv_growth: float = 0.0
    """Engines' worth of pages by which use grows while an engine starts."""
    row_growth: float = 0.0
    """Engines' worth of rows by which use grows while an engine starts."""
    requests: float = 0.0
    """Requests queued in the pool: one engine for each is the most that can help."""
    waiting_for_decode: float = 0.0
    """Requests whose prompt is computed and that wait for the decode pool."""
    margin: Margin = field(default=Margin())


def wants_of(view: PoolView, settings: ScalingSettings) -> list[Want]:
    """Engines that each target asks for, the largest first; equal ones in the order of their
    weight."""
    computes = view.role is not Role.DECODE
    decodes = view.role is not Role.PREFILL
    wants = [
        *(_prefill_wants(view, settings) if computes else ()),
        *(_decode_wants(view, settings) if decodes else ()),
    ]
    return sorted(wants, key=lambda want: -want.engines)


def _prefill_wants(view: PoolView, settings: ScalingSettings) -> Iterator[Want]:
    yield arriving_want(view, settings)
    yield _queued(view, settings)
    if settings.prefill_queue is not None:
        demand = view.now.queued_requests / settings.prefill_queue
        text = f"{view.now.queued_requests:.0f} requests wait for prefill"
        allowed = f"{settings.prefill_queue} in each engine"
        yield _ratio(view, demand, "PrefillQueue", text, allowed)


def _decode_wants(view: PoolView, settings: ScalingSettings) -> Iterator[Want]:
    yield _pages(view, settings)
    yield _rows(view)
    if view.role is Role.DECODE and settings.decode_queue is not None:
        demand = view.waiting_for_decode / settings.decode_queue
        text = f"{view.waiting_for_decode:.0f} requests wait for decode"
        yield _ratio(view, demand, "DecodeQueue", text, f"{settings.decode_queue} in each engine")
    if view.role is Role.DECODE and settings.itl_seconds is not None:
        yield _itl(view, settings)


def arriving_want(view: PoolView, settings: ScalingSettings) -> Want:
    """Engines that serve arriving work within the promised latency."""
    running = view.now.running_requests if view.role is Role.MIXED else 0.0
    itl = view.itl if view.role is Role.MIXED else None
    if view.load.offered_engines <= 0 and itl is None:
        return Want(0, "ArrivingWork", "no work arrives")
    promise = promise_of(settings)
    sized = view.load.offered_engines * view.margin.factor
    load = replace(view.load, offered_engines=sized)
    more = replace(view.load, offered_engines=sized * (1 + TOLERANCE))
    engines = _settled(
        view.current,
        engines_for(load, promise, itl, running),
        lambda: engines_for(more, promise, itl, running * (1 + TOLERANCE)),
    )
    between = "" if itl is None else f", {_milliseconds(view.now.itl_seconds)} between tokens"
    text = f"arriving prompts keep {view.load.offered_engines:.2f} engines busy{between}"
    text += margin_message(view.margin)
    return Want(engines, "ArrivingWork", text)


def _queued(view: PoolView, settings: ScalingSettings) -> Want:
    """Engines for waiting work. A configured limit is kept exactly. Otherwise there are enough to
    serve, besides arriving work, what waits too long within a few seconds. There are never more
    engines than requests, since a prompt runs on one engine."""
    allowed, seconds = settings.allowed_queue_seconds, view.now.queued_seconds
    if settings.queue_seconds is not None or settings.ttft_seconds is None:
        demand = seconds / allowed
    else:
        late = max(0.0, seconds - allowed * max(1, view.current))
        demand = view.load.busy_engines + late / DRAIN_SECONDS if late else 0.0
    demand = min(demand, view.current + view.requests) if seconds else 0.0
    text = f"{seconds:.1f} s of work wait"
    return _ratio(view, demand, "QueuedWork", text, f"{allowed:g} s in each engine")


def _pages(view: PoolView, settings: ScalingSettings) -> Want:
    """Engines for the pages that requests hold, will soon hold, or wait for."""
    now = view.now.kv_engines
    used = now + view.kv_growth
    text = f"requests need the pages of {used:.2f} engines"
    return _ratio(view, used / settings.kv_used, "KvPages", text, f"{settings.kv_used:.0%} of each")


def _rows(view: PoolView) -> Want:
    """Engines whose rows hold all requests that run, will soon run, or wait."""
    demand = view.now.row_engines + view.row_growth
    text = f"running, coming and waiting requests fill {demand:.2f} engines"
    return _ratio(view, demand / FULL_ROWS, "RunningRequests", text, f"{FULL_ROWS:.0%} of each")


def _itl(view: PoolView, settings: ScalingSettings) -> Want:
    """Engines of a decode pool for the time between tokens."""
    if view.itl is None:
        return Want(0, "Itl", "no answer runs")
    itl, running, allowed = view.itl, view.now.running_requests, settings.itl_seconds or math.inf
    text = f"{_milliseconds(view.now.itl_seconds)} between tokens"
    if itl.base_seconds >= allowed:
        return Want(0, "Itl", f"{text}; {_milliseconds(allowed)} is below what one request takes")
    engines = _settled(
        view.current,
        engines_for_answers(itl, allowed, running),
        lambda: engines_for_answers(itl, allowed, running * (1 + TOLERANCE)),
    )
    return Want(engines, "Itl", f"{text}, {_milliseconds(allowed)} allowed")


def promise_of(settings: ScalingSettings) -> Promise:
    """Promise that the pools are sized for."""
    share = min(0.9999, max(0.5, settings.percentile / 100))
    return Promise(settings.allowed_queue_seconds, settings.itl_seconds, share)


def _ratio(view: PoolView, demand: float, reason: str, text: str, allowed: str) -> Want:
    engines = _settled(
        view.current,
        math.ceil(demand - GROWTH_TOLERANCE),
        lambda: math.ceil(demand * (1 + TOLERANCE)),
    )
    return Want(max(0, engines), reason, f"{text}, {allowed} allowed")


def _settled(current: int, grown: int, shrunk: Callable[[], int]) -> int:
    """`grown` if it exceeds the current engines; else at most `shrunk`."""
    return grown if grown >= current else min(current, max(grown, shrunk()))


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.0f} ms"
