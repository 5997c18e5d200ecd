"""Forecast of a pool, learnt from its history: work, its burstiness, length of answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Final

from sluice_autoscaler.measured import Measured

SHORTEST_SECONDS: Final = 20.0
LONGEST_SECONDS: Final = 300.0
"""Longest window over which the rate of arriving work is averaged; `SHORTEST_SECONDS` is the
shortest."""
RELATIVE_ERROR: Final = 0.12
"""Relative error of the averaged rate below which a window is long enough. With few, large requests
that takes a longer window."""
SURE_SECONDS: Final = 10.0
"""The shortest window that may show a rise."""
SURE_ERRORS: Final = 1.5
"""Standard errors by which a mean over a short window is lowered to be sure of it."""
RISE_SECONDS: Final = (15.0, 30.0, 60.0)
"""Lengths of the two successive windows whose means show a rise, steep or slow."""
RISE_ERRORS: Final = 3.5
"""Standard errors of their difference by which a rise is lowered to be sure of it. Every decision
looks for one: at three standard errors, chance alone makes bursty load look like a rise."""
MAX_RISE: Final = 1.5
DISPERSION_SECONDS: Final = 300.0
"""Window over which the burstiness of arriving work is learnt."""
PRIOR_DISPERSION: Final = 0.5
"""Dispersion in seconds until it is measured: typical of prompts of a quarter of a second each, in
steps that also decode."""
PRIOR_SAMPLES: Final = 15
"""Number of samples that weigh as much as the prior."""
TREND_SECONDS: Final = 20.0
SURE_TREND_SECONDS: Final = 60.0
"""Window of the sure trend of page use."""
MAX_GROWTH: Final = 0.5
"""Largest growth by the trend of the last seconds, as a share of the pages in use."""
MAX_SURE_GROWTH: Final = 1.0
"""Largest growth by the trend of the last minute, as a share of the pages in use."""
ANSWER_SECONDS: Final = 10.0
"""Length of an answer that is assumed until one has ended."""
ANSWER_SAMPLES: Final = 150
MAX_ANSWER_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of one pool."""

    offered_engines: float = 0.0
    """Engines that the arriving work would keep busy all the time if nothing decoded."""
    dispersion_seconds: float = PRIOR_DISPERSION
    """Variance of the work that arrives in a period, divided by its mean. For independent requests:
    the mean square of a request's work divided by its mean."""
    answer_seconds: float = ANSWER_SECONDS
    """Mean time that a request runs."""
    prompt_share: float = 1.0
    """Fraction of the time of steps with prompts that the prompts take; decoding takes the rest."""

    @property
    def busy_engines(self) -> float:
        """Engines kept busy by prompts, with the decoding in the same steps."""
        return self.offered_engines / self.prompt_share


def forecast(ticks: Sequence[Measured], now: Measured, ahead_seconds: float) -> Forecast:
    """Forecast at `now`. `ticks`: earlier ticks, the oldest first. `ahead_seconds`: time until an
    engine requested now is ready."""
    prompt_share, past = _prompt_share(now), _mean(ticks)
    dispersion = _dispersion_seconds(ticks, PRIOR_DISPERSION * prompt_share)
    return Forecast(
        max(
            _offered_engines((*ticks, now), dispersion, past),
            _risen_engines((*ticks, now), dispersion, ahead_seconds),
        ),
        dispersion,
        _answer_seconds(ticks),
        prompt_share,
    )


def _prompt_share(now: Measured) -> float:
    whole, marginal = now.prefill_tokens_per_second, now.marginal_prefill_tokens_per_second
    return min(1.0, whole / marginal) if whole and marginal else 1.0


def _mean(ticks: Sequence[Measured]) -> float:
    """Mean number of engines that the work of `ticks` kept busy."""
    counted = [tick for tick in ticks if tick.arrived_seconds is not None and tick.interval_seconds]
    seconds = sum(tick.interval_seconds for tick in counted)
    return sum(tick.arrived_seconds or 0.0 for tick in counted) / seconds if seconds else 0.0


def kv_growth(ticks: Sequence[Measured], now: Measured, ahead_seconds: float) -> float:
    """Growth of page use to expect in `ahead_seconds`, in engines' worth of pages: by the trend of
    the last seconds or of the last minute, which is surer."""
    used = [(tick.interval_seconds, tick.kv_engines) for tick in _counted(ticks, now)]
    lately = _trend(used, TREND_SECONDS) * ahead_seconds
    surely = _trend(used, SURE_TREND_SECONDS) * ahead_seconds
    most = now.kv_engines
    return max(0.0, min(lately, MAX_GROWTH * most), min(surely, MAX_SURE_GROWTH * most))


def row_growth(ticks: Sequence[Measured], now: Measured, ahead_seconds: float) -> float:
    """Growth of running rows to expect in `ahead_seconds`, in engines' worth of rows, by the trend
    of the last minute: rows are few, and vary more than pages."""
    used = [(tick.interval_seconds, tick.row_engines) for tick in _counted(ticks, now)]
    growth = _trend(used, SURE_TREND_SECONDS) * ahead_seconds
    return max(0.0, min(growth, MAX_SURE_GROWTH * now.row_engines))


def _counted(ticks: Sequence[Measured], now: Measured) -> Iterator[Measured]:
    """Ticks from the latest back to the first gap in which no engine was seen."""
    return takewhile(lambda tick: tick.engines, chain((now,), reversed(ticks)))


def _trend(used: Sequence[tuple[float, float]], over_seconds: float) -> float:
    """Change of use a second; 0 while it is not known for `over_seconds`. `used`: the seconds since
    the previous sample, and the use, the last one first."""
    seconds = 0.0
    for interval_seconds, before in used:
        if seconds >= over_seconds:
            return (used[0][1] - before) / seconds
        seconds += interval_seconds
    return 0.0


def _offered_engines(ticks: Sequence[Measured], dispersion_seconds: float, past: float) -> float:
    """Mean of the arriving work over a window long enough for a precise estimate, or the lower
    bound from a shorter window if that is more. A shorter history is used in full."""
    enough = dispersion_seconds / (RELATIVE_ERROR * RELATIVE_ERROR * past) if past else math.inf
    longest = min(LONGEST_SECONDS, max(SHORTEST_SECONDS, enough))
    best = seconds = arrived = 0.0
    for tick in reversed(ticks):
        if tick.arrived_seconds is None or not tick.interval_seconds:
            continue
        seconds += tick.interval_seconds
        arrived += tick.arrived_seconds
        mean = arrived / seconds
        if seconds >= longest:
            return max(best, mean)
        if seconds >= SURE_SECONDS:
            error = math.sqrt(dispersion_seconds * mean / seconds)
            best = max(best, mean - SURE_ERRORS * error)
    return max(best, arrived / seconds) if seconds >= SURE_SECONDS else best


def _risen_engines(
    ticks: Sequence[Measured], dispersion_seconds: float, ahead_seconds: float
) -> float:
    """Mean of the last window, extrapolated by its certain rise over the window before. 0 without a
    rise; at most `MAX_RISE` times the mean, since a step looks like a rise."""
    known = [tick for tick in ticks if tick.arrived_seconds is not None and tick.interval_seconds]
    risen = 0.0
    for seconds in RISE_SECONDS:
        means = _last_means(known, seconds)
        if means is None:
            break
        mean, before = means
        error = math.sqrt(dispersion_seconds * (mean + before) / seconds)
        rise = mean - before - RISE_ERRORS * error
        if rise > 0:
            ahead = mean + rise * (0.5 + ahead_seconds / seconds)
            risen = max(risen, min(ahead, MAX_RISE * mean))
    return risen


def _last_means(known: Sequence[Measured], window_seconds: float) -> tuple[float, float] | None:
    """Means of arriving work, in engines, in the last window and in the one before; None until the
    history is long enough."""
    means, at = [], len(known)
    for _ in range(2):
        seconds = arrived = 0.0
        while at and seconds < window_seconds:
            at -= 1
            seconds += known[at].interval_seconds
            arrived += known[at].arrived_seconds or 0.0
        if seconds < window_seconds:
            return None
        means.append(arrived / seconds)
    return means[0], means[1]


def _dispersion_seconds(ticks: Sequence[Measured], prior: float) -> float:
    """Dispersion in seconds, from the differences of successive samples, which a slow rise or fall
    of the rate hardly affects."""
    pairs = samples = work = squares = 0.0
    last: Measured | None = None
    for tick in reversed(ticks):
        if tick.arrived_seconds is None or not tick.interval_seconds:
            last = None
            continue
        samples += tick.interval_seconds
        work += tick.arrived_seconds
        if last is not None and last.arrived_seconds is not None:
            shorter = min(last.interval_seconds, tick.interval_seconds)
            gap = (
                last.arrived_seconds / last.interval_seconds
                - tick.arrived_seconds / tick.interval_seconds
            ) * shorter
            squares += gap * gap / 2 / shorter
            pairs += 1
        last = tick
        if samples >= DISPERSION_SECONDS:
            break
    if not pairs or not work:
        return prior
    seen = squares / pairs / (work / samples)
    return (PRIOR_SAMPLES * prior + pairs * seen) / (PRIOR_SAMPLES + pairs)


def _answer_seconds(ticks: Sequence[Measured]) -> float:
    """Length of an answer by Little's law: running requests divided by the rate at which they end.
    While few have ended, it is at least the mean time that running requests have surely run."""
    running = finished = surely = before = 0.0
    for tick in ticks[-ANSWER_SAMPLES:]:
        if tick.finished_requests is not None:
            running += tick.running_requests * tick.interval_seconds
            surely += min(before, tick.running_requests) * tick.interval_seconds
            finished += tick.finished_requests
        before = tick.running_requests
    if not ticks or not math.isfinite(running):
        return ANSWER_SECONDS
    if finished < PRIOR_SAMPLES:
        begun = finished + ticks[-1].running_requests
        return min(MAX_ANSWER_SECONDS, max(ANSWER_SECONDS, surely / max(1.0, begun)))
    return min(MAX_ANSWER_SECONDS, max(1.0, running / finished))
