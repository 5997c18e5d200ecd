"""What to expect of a pool, learnt from its history: work, its burstiness, length of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.measured import Measured

SHORTEST_SECONDS: Final = 20.0
LONGEST_SECONDS: Final = 300.0
"""Between which the window is over which the rate of arriving work is averaged."""
RELATIVE_ERROR: Final = 0.12
"""Of that mean. Where requests are few and large it takes longer to know their rate."""
SURE_SECONDS: Final = 10.0
"""The shortest window that may show a rise."""
SURE_ERRORS: Final = 1.5
"""Standard errors by which a mean over a short window is lowered to be sure of it."""
DISPERSION_SECONDS: Final = 300.0
"""Over which its burstiness is learnt."""
PRIOR_DISPERSION: Final = 0.5
"""In seconds, until measured: as of prompts that take a quarter of a second each, beside what
decodes."""
PRIOR_SAMPLES: Final = 15
"""So many samples are as good as the prior."""
TREND_SECONDS: Final = 20.0
ANSWER_SECONDS: Final = 10.0
"""Assumed until an answer has ended."""
ANSWER_SAMPLES: Final = 150
MAX_ANSWER_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one pool."""

    offered_engines: float = 0.0
    """Engines that the arriving work would keep busy all the time if nothing decoded."""
    dispersion_seconds: float = PRIOR_DISPERSION
    """Variance of the work that arrives in some time, by its mean. For requests that come on their
    own: the mean square of their work by its mean."""
    answer_seconds: float = ANSWER_SECONDS
    """Mean time that a request runs."""
    prompt_share: float = 1.0
    """Of the time of steps that compute prompts: the rest goes to what decodes in them."""

    @property
    def busy_engines(self) -> float:
        """Engines that compute prompts all the time, with what decodes beside them."""
        return self.offered_engines / self.prompt_share


def forecast(ticks: Sequence[Measured], now: Measured) -> Forecast:
    """`ticks`: those before `now`, the oldest first."""
    prompt_share, past = _prompt_share(now), _mean(ticks)
    dispersion = _dispersion_seconds(ticks, PRIOR_DISPERSION * prompt_share)
    return Forecast(
        _offered_engines((*ticks, now), dispersion, past),
        dispersion,
        _answer_seconds(ticks),
        prompt_share,
    )


def _prompt_share(now: Measured) -> float:
    whole, marginal = now.prefill_tokens_per_second, now.marginal_prefill_tokens_per_second
    return min(1.0, whole / marginal) if whole and marginal else 1.0


def _mean(ticks: Sequence[Measured]) -> float:
    """Engines that all the work that is remembered would have kept busy."""
    counted = [tick for tick in ticks if tick.arrived_seconds is not None and tick.interval_seconds]
    seconds = sum(tick.interval_seconds for tick in counted)
    return sum(tick.arrived_seconds or 0.0 for tick in counted) / seconds if seconds else 0.0


def kv_trend(ticks: Sequence[Measured], now: Measured, ahead_seconds: float) -> float:
    """Engines' worth of pages by which use changes in `ahead_seconds`, if it goes on as in the last
    `TREND_SECONDS`."""
    seconds = now.interval_seconds
    for tick in reversed(ticks):
        if not tick.engines:
            break
        if seconds >= TREND_SECONDS:
            return (now.kv_engines - tick.kv_engines) / seconds * ahead_seconds
        seconds += tick.interval_seconds
    return 0.0


def _offered_engines(ticks: Sequence[Measured], dispersion_seconds: float, past: float) -> float:
    """The mean over a window that is long enough for a precise estimate, or what a shorter window
    surely shows, if that is more. A shorter history is used in full."""
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


def _dispersion_seconds(ticks: Sequence[Measured], prior: float) -> float:
    """From the differences of samples that follow each other, which a slow rise or fall of the rate
    hardly touches."""
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
    """By Little's law: requests that run, by the rate at which they end."""
    running = finished = 0.0
    for tick in ticks[-ANSWER_SAMPLES:]:
        if tick.finished_requests is not None:
            running += tick.running_requests * tick.interval_seconds
            finished += tick.finished_requests
    if finished < PRIOR_SAMPLES or not math.isfinite(running):
        return ANSWER_SECONDS
    return min(MAX_ANSWER_SECONDS, max(1.0, running / finished))
