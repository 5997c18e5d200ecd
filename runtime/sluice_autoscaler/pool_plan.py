"""Plan of one pool by its own load, limits and history, before the budget of all pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.start import start_text

from sluice_autoscaler.decision import Margin, engines
from sluice_autoscaler.forecast import forecast, kv_growth, row_growth
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.itl import itl_model
from sluice_autoscaler.measured import Measured, measure
from sluice_autoscaler.reports import Reports, reports_of
from sluice_autoscaler.sample import PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_autoscaler.stabilise import stabilised, window_seconds
from sluice_autoscaler.trade import need_of
from sluice_autoscaler.wants import PoolView, Want, wants_of


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Plan of one pool, before the budget is applied."""

    desired: int
    wanted: int | None
    reason: str
    message: str
    need: float | None = None
    """Engines that the pool needs, for `trade`; None if its load is unknown or there is no other
    pool."""
    start_seconds: float | None = None
    """Seconds that an engine takes to start, as measured; None: not known."""
    drain_seconds: float | None = None
    """Seconds until an engine has finished the requests that it has begun; None: not known."""


def seen_of(history: History, sample: Sample, role: Role) -> tuple[Reports, Measured]:
    """The pool's reports that count, and its measurements from them."""
    reports, last = reports_of(sample.engines or (), role), history.last
    former = last.decision.pools.get(role) if last else None
    known = former.measured if former else Measured()
    now = measure(reports, sample, last.sample if last else None, known)
    boot = startup_of(last, sample, role)
    return reports, replace(
        now,
        boot_seconds=boot.seconds,
        growth_asked_seconds=boot.asked_seconds,
        itl=itl_model(measured_of(history, role), now),
    )


def measured_of(history: History, role: Role) -> list[Measured]:
    """The pool's measurements at each tick."""
    return [
        tick.decision.pools[role].measured for tick in history.ticks if role in tick.decision.pools
    ]


def hold_reason(reports: Reports, pool: PoolSample, sample: Sample) -> tuple[str, str] | None:
    """Reason and message why a pool's load is unknown; None if it is known."""
    if sample.engines is None:
        return "MetricsMissing", "no router answers, so the load is not known"
    if reports.counted or not (pool.ready or reports.unknown):
        return None
    if reports.odd:
        return "MetricsOdd", f"{reports.odd} load reports have impossible numbers"
    if reports.stale:
        return "MetricsStale", f"{reports.stale} load reports are old"
    if unreported := _unreported(pool, sample):
        return "MetricsMissing", unreported
    return "MetricsMissing", f"routers know none of the {pool.ready} ready engines"


def _unreported(pool: PoolSample, sample: Sample) -> str:
    """Text about ready engines of a pool of which routers have no load report; empty without any.
    Such an engine's role is unknown, so those are counted that the pool lacks."""
    reported = sum(engine.role is pool.role for engine in sample.engines or ())
    count = min(sample.unreported, pool.ready - reported)
    verbs = "gives routers no load report", "give routers no load report"
    return engines(count, verbs) if count > 0 else ""


def on_hold(
    settings: ScalingSettings, limits: PoolLimits, pool: PoolSample, why: tuple[str, str]
) -> PoolPlan:
    """The plan while the load is unknown: the pool keeps its engines, or goes to the floor, as
    configured."""
    reason, message = why
    if settings.on_metrics_loss == "Floor":
        return PoolPlan(limits.minimum, None, reason, f"{message}; falls to minReplicas")
    desired = max(limits.minimum, min(limits.maximum, pool.replicas))
    return PoolPlan(desired, None, reason, f"{message}; holds")


def planned(
    settings: ScalingSettings,
    history: History,
    sample: Sample,
    role: Role,
    seen: tuple[Reports, Measured],
    least: int,
) -> PoolPlan:
    """The plan for a known load. `least`: engines that the pool keeps without any load."""
    reports, now = seen
    limits, pool = settings.pools[role], sample.pools[role]
    waiting = _waiting_for_decode(sample, reports)
    margin = history.last.decision.margin if history.last else Margin()
    view = _view(measured_of(history, role), now, pool, waiting, margin)
    want = _with_bounds(wants_of(view, settings)[0], reports, least, pool.replicas)
    limited = max(limits.minimum, min(limits.maximum, want.engines))
    boot = _start_seconds(now, pool)
    down_seconds = window_seconds(boot, view.load.answer_seconds)
    steady = stabilised(history, role, sample.time_seconds, pool.replicas, limited, down_seconds)
    desired = max(limits.minimum, min(limits.maximum, steady.engines))
    reason, message = _why(want, desired, pool.replicas, limits.maximum)
    if unreported := _unreported(pool, sample):
        message = f"{message}; {unreported}"
    if pool.unschedulable and desired > pool.replicas:
        desired, reason = max(limits.minimum, pool.replicas), "CapacityBlocked"
        message = f"{message}; {_blocked(pool)}, so no more are asked for"
    elif steady.reason:
        reason, message = steady.reason, f"{message}; {steady.message}"
    return PoolPlan(
        desired=desired,
        wanted=want.engines,
        reason=reason,
        message=message,
        need=None if role is Role.MIXED else need_of(settings, view),
        start_seconds=now.boot_seconds or pool.start_seconds,
        drain_seconds=_drain_seconds(view),
    )


def _drain_seconds(view: PoolView) -> float:
    """Seconds to drain an engine with average work: a prefill engine's waiting prompts, otherwise
    one answer."""
    if view.role is Role.PREFILL:
        return view.now.queued_seconds / max(1, view.now.engines)
    return view.load.answer_seconds


def _view(
    past: Sequence[Measured], now: Measured, pool: PoolSample, waiting: float, margin: Margin
) -> PoolView:
    boot = _start_seconds(now, pool)
    load = forecast(past, now, boot)
    # after the length of an answer as many answers end as begin, so use grows no longer
    ahead = min(boot, load.answer_seconds)
    return PoolView(
        role=pool.role,
        current=pool.replicas,
        now=now,
        load=load,
        itl=now.itl,
        kv_growth=kv_growth(past, now, ahead),
        row_growth=row_growth(past, now, ahead),
        requests=now.queued_requests,
        waiting_for_decode=waiting,
        margin=margin,
    )


def _waiting_for_decode(sample: Sample, decode: Reports) -> float:
    """Requests without pages, and requests whose computed prompts prefill engines hold until they
    are read. Other requests in transfer wait for their prompt, and count as queued or running in
    prefill."""
    prefill = reports_of(sample.engines or (), Role.PREFILL)
    without_pages = sum(engine.figures.queues.prealloc for engine in decode.counted)
    computed = sum(engine.figures.queues.inflight for engine in prefill.counted)
    return decode.scale * without_pages + prefill.scale * computed


def _with_bounds(want: Want, reports: Reports, least: int, current: int) -> Want:
    """The load's need within bounds. Each engine that only fails adds one, for at most half of all:
    if most fail, the cause is elsewhere. With fewer than half of the reports the pool does not
    shrink."""
    bounded = want if want.engines >= least else replace(want, engines=least, reason="AtMinimum")
    if reports.unknown > len(reports.counted) and bounded.engines < current:
        return replace(bounded, engines=current, message=f"{reports.unknown} reports do not count")
    if not 0 < reports.sick <= len(reports.counted) + reports.unknown:
        return bounded
    more = bounded.engines + reports.sick
    reason = "SickEngines" if bounded.engines <= current < more else bounded.reason
    sick = engines(reports.sick, ("fails", "fail"))
    return Want(more, reason, f"{bounded.message}; {sick}")


def _why(want: Want, desired: int, current: int, maximum: int) -> tuple[str, str]:
    text = f"{want.message}: {engines(want.engines, ('is', 'are'))} wanted"
    if want.engines > maximum:
        text += f", maxReplicas is {maximum}"
    if desired > current:
        return want.reason, text
    if desired < current:
        return "LessWork", text
    return ("AtMaximum" if want.engines > maximum else "Enough"), text


def _blocked(pool: PoolSample) -> str:
    """Reasons why unplaced pods wait, as text."""
    without_node = pool.unschedulable - pool.queued
    waits = [f"{pool.queued} pods wait for queue {pool.queue}"] if pool.queued else []
    waits += [f"{without_node} pods find no place"] if without_node else []
    return ", ".join(waits)


STARTUP_SECONDS: Final = 30.0
"""Start time in seconds that is assumed until one is known."""


def _start_seconds(now: Measured, pool: PoolSample) -> float:
    """Seconds that an engine takes to start: as last measured by the autoscaler, else as the pool's
    pods took."""
    return now.boot_seconds or pool.start_seconds or STARTUP_SECONDS


def start_message(now: Measured, pool: PoolSample) -> str:
    """The time of an engine's start that decisions use, with its phases."""
    seconds = _start_seconds(now, pool)
    if now.boot_seconds or pool.start_seconds:
        return f"an engine starts in {start_text(seconds, pool.start_phases)}"
    return f"an engine is assumed to start in {seconds:.0f} s, until a start was measured"


@dataclass(frozen=True, slots=True)
class StartupTime:
    """Start-up time of one pool."""

    seconds: float | None
    """Seconds from the decision to the ready engine, as last seen; None: none was awaited yet."""
    asked_seconds: float | None
    """Time at which the awaited engines were requested; None: no engine is awaited."""


def startup_of(last: Tick | None, sample: Sample, role: Role) -> StartupTime:
    """The start-up time known at `sample`, from the previous tick."""
    if last is None or role not in last.decision.pools:
        return StartupTime(None, None)
    measured, decided = last.decision.pools[role].measured, last.decision.pools[role]
    before, now = last.sample.pools[role], sample.pools[role]
    growth_since = measured.growth_asked_seconds
    # A moved engine is ready sooner than a new one, so it is not measured.
    if growth_since is None and decided.desired > decided.current and not last.decision.move:
        growth_since = last.sample.time_seconds
    if growth_since is not None and now.ready > before.ready:
        return StartupTime(sample.time_seconds - growth_since, None)
    arrived = now.ready >= now.replicas and decided.desired <= now.replicas
    return StartupTime(measured.boot_seconds, None if arrived else growth_since)
