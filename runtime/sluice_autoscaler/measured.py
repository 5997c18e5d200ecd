"""Measurements of a pool since the previous sample: the numbers that decisions learn from.

Work is counted in seconds of one engine's time, so that engines of different speeds add up. Two
rates convert tokens to seconds. Waiting work uses the rate of whole steps, which also decode.
Arriving work uses the rate without decoding, because engines sized for the time between tokens
account for decoding separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import MIN_PROMPT_SHARE

from sluice_autoscaler.reports import Reports, warm
from sluice_autoscaler.sample import EngineSample, Sample


@dataclass(frozen=True, slots=True)
class ItlModel:
    """The time between two tokens of an engine without prompts, as a function of its running
    requests."""

    base_seconds: float
    slope_seconds: float
    """Additional seconds for each running request of an engine."""

    def decode_seconds(self, running: float) -> float:
        """Seconds between two tokens with `running` requests."""
        return self.base_seconds + self.slope_seconds * running


@dataclass(frozen=True, slots=True)
class Measured:
    """One pool at one sample; None: not known."""

    interval_seconds: float = 0.0
    """Seconds since the previous sample; 0 if there is none."""
    arrived_seconds: float | None = None
    """Work that arrived in the interval: new prompt tokens, by the marginal rate if it is
    reported."""
    finished_requests: int | None = None
    """Requests that ended in the interval."""
    prefill_tokens_per_second: float | None = None
    """Prefill rate of one engine, the pool's mean, in steps that also decode."""
    marginal_prefill_tokens_per_second: float | None = None
    """Prefill rate of one engine without the time for decoding; None if no engine reports it."""
    queued_seconds: float = 0.0
    """Waiting work of the whole pool, in seconds of steps that also decode."""
    queued_requests: float = 0.0
    running_requests: float = 0.0
    kv_engines: float = 0.0
    """Pages that requests hold or wait for, as a number of engines' whole pools."""
    row_engines: float = 0.0
    """Requests that run or wait, divided by how many one engine can run at once."""
    itl_seconds: float | None = None
    itl: ItlModel | None = None
    """Model of the time between tokens, as learnt so far."""
    pending_share: float = 0.0
    """Share of a decode pool's requests whose prompt is not computed yet."""
    need_engines: float | None = None
    """Engines that the pool's own work keeps busy; known only under a GPU budget for several
    pools."""
    engines: int = 0
    """Number of counted engines."""
    boot_seconds: float | None = None
    """Seconds from the decision to the ready engine, as last seen."""
    growth_asked_seconds: float | None = None
    """Time at which the engines that are not ready yet were requested, by the samples' clock."""
    busy: bool = False
    """Whether the service had anything to do."""


def measure(reports: Reports, sample: Sample, before: Sample | None, known: Measured) -> Measured:
    """Measures the pool of `reports` in `sample`. `known`: the previous measurement, whose rates
    stand in for engines without rates."""
    engines = reports.counted
    rate = pool_rate(engines, _whole_rate) or known.prefill_tokens_per_second
    marginal = pool_rate(engines, marginal_rate) or known.marginal_prefill_tokens_per_second
    interval = sample.time_seconds - before.time_seconds if before else 0.0
    pairs = _pairs(engines, before.engines if before and before.engines else ())
    scale = reports.scale
    return Measured(
        interval_seconds=max(0.0, interval),
        arrived_seconds=_arrived_seconds(pairs, marginal or rate, scale),
        finished_requests=_finished_requests(pairs),
        prefill_tokens_per_second=rate,
        marginal_prefill_tokens_per_second=marginal,
        queued_seconds=scale * sum(queued_seconds(engine, rate) for engine in engines),
        queued_requests=scale * sum(engine.figures.queued_requests for engine in engines),
        running_requests=scale * sum(engine.figures.running_requests for engine in engines),
        kv_engines=scale * _kv_engines(engines, pairs),
        row_engines=scale * sum(_rows(engine) for engine in engines),
        itl_seconds=_itl_seconds(engines),
        pending_share=_pending_share(engines),
        engines=len(engines),
    )


def pool_rate(
    engines: Sequence[EngineSample], rate_of: Callable[[EngineSample], float | None]
) -> float | None:
    """Tokens per second of one engine: the mean over warm engines, or over all if none is warm."""
    known = [(engine, rate) for engine in engines if (rate := rate_of(engine))]
    rates = [rate for engine, rate in known if warm(engine)] or [rate for _, rate in known]
    return sum(rates) / len(rates) if rates else None


def _whole_rate(engine: EngineSample) -> float | None:
    return engine.figures.prefill_tokens_per_second


def marginal_rate(engine: EngineSample) -> float | None:
    """Prompt tokens that an engine computes in a second spent on prompts alone. Until that is
    known, the rate of steps that also decode. A prefill engine spends all its time on prompts."""
    figures = engine.figures
    whole, marginal = figures.prefill_tokens_per_second, figures.marginal_prefill_tokens_per_second
    if not whole or not marginal or engine.role is not Role.MIXED:
        return whole
    return min(max(whole, marginal), whole / MIN_PROMPT_SHARE)


def queued_seconds(engine: EngineSample, rate: float | None) -> float:
    """Seconds to compute the work that waits in one engine, at its own rate if that is known."""
    own = engine.figures.prefill_tokens_per_second
    if own and warm(engine):
        return engine.figures.queued_tokens / own
    if rate and engine.figures.queued_tokens:
        return engine.figures.queued_tokens / rate
    return engine.figures.queued_work_seconds


def _kv_engines(engines: Iterable[EngineSample], pairs: Iterable[Pair]) -> float:
    """Pages in use and waited for, as a number of whole pools. An engine whose queue does not move
    counts as full, and each waiting request needs as much as a running one."""
    blocked = {new.name: _blocked_requests(old, new) for old, new in pairs}
    return sum(
        1 + waiting / max(1, engine.figures.running_requests) if waiting else engine.figures.kv_used
        for engine in engines
        for waiting in (max(blocked.get(engine.name, 0), engine.figures.queues.prealloc),)
    )


def _blocked_requests(old: EngineSample, new: EngineSample) -> int:
    """Requests that wait for pages: the engine has free rows, but has computed no prompts since the
    previous sample."""
    before, now = old.figures, new.figures
    waiting = min(before.queued_requests, now.queued_requests)
    if not waiting or not now.running_requests or new.role is not Role.MIXED:
        return 0
    if new.max_running_requests and now.running_requests >= new.max_running_requests:
        return 0
    arrived = now.prompt_tokens_total - before.prompt_tokens_total
    computed = arrived - (now.queued_tokens - before.queued_tokens)
    return waiting if computed <= 0 else 0


def _rows(engine: EngineSample) -> float:
    if not engine.max_running_requests:
        return 0.0
    figures = engine.figures
    return (figures.running_requests + figures.queued_requests) / engine.max_running_requests


def _pending_share(engines: Sequence[EngineSample]) -> float:
    without_pages = sum(engine.figures.queues.prealloc for engine in engines)
    admitted = without_pages + sum(engine.figures.running_requests for engine in engines)
    pending = without_pages + sum(engine.figures.queues.transfer for engine in engines)
    return min(1.0, pending / admitted) if admitted else 0.0


def has_work(engine: EngineSample) -> bool:
    """Whether an engine has any request."""
    return engine.figures.requests > 0


Pair = tuple[EngineSample, EngineSample]


def _pairs(engines: Iterable[EngineSample], before: Iterable[EngineSample]) -> list[Pair]:
    """Pairs of an engine's samples before and now, in one epoch. A restarted engine counts from its
    next sample on, because its totals restart."""
    earlier = {engine.name: engine for engine in before}
    pairs = [(earlier[engine.name], engine) for engine in engines if engine.name in earlier]
    return [(old, new) for old, new in pairs if old.epoch == new.epoch]


def _arrived_seconds(pairs: Iterable[Pair], rate: float | None, scale: float) -> float | None:
    if rate is None:
        return None
    arrived, measurable = 0.0, False
    for old, new in pairs:
        own = marginal_rate(new) if warm(new) else None
        tokens = new.figures.prompt_tokens_total - old.figures.prompt_tokens_total
        arrived += max(0, tokens) / (own or rate)
        measurable = True
    return arrived * scale if measurable else None


def _finished_requests(pairs: Iterable[Pair]) -> int | None:
    counts = [
        max(0, new.figures.finished_requests_total - old.figures.finished_requests_total)
        for old, new in pairs
    ]
    return sum(counts) if counts else None


def _itl_seconds(engines: Iterable[EngineSample]) -> float | None:
    """Mean time between tokens over answers: each engine is weighted by its running requests."""
    seen = [
        (max(1, engine.figures.running_requests), engine.figures.itl_seconds)
        for engine in engines
        if engine.figures.itl_seconds is not None and engine.role is not Role.PREFILL
    ]
    answers = sum(running for running, _ in seen)
    return sum(running * itl for running, itl in seen) / answers if seen else None
