"""What to expect of a pool, learnt from its history: work, its burstiness, length of answers.

Only what was seen is used. Knows no targets and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.measured import Measured

WINDOWS_SECONDS: Final = (20.0, 40.0, 60.0)
"""Over which the rate of arriving work is averaged; the highest mean counts, so that a rise is seen
early and a fall late."""
DISPERSION_SECONDS: Final = 300.0
"""Over which its burstiness is learnt."""
PRIOR_DISPERSION: Final = 0.5
"""In seconds, while a service is not known: as of prompts that take a quarter second each."""
PRIOR_SAMPLES: Final = 15
"""So many samples are as good as the prior."""
TREND_SECONDS: Final = 20.0
ANSWER_SECONDS: Final = 10.0
"""Until answers were seen to end."""
ANSWER_SAMPLES: Final = 150
MAX_ANSWER_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one pool."""

    offered_engines: float = 0.0
    """Engines that the arriving work would keep busy all the time."""
    dispersion_seconds: float = PRIOR_DISPERSION
    """Variance of the work that arrives in some time, by its mean. For requests that come on their
    own: the mean square of their work by its mean."""
    answer_seconds: float = ANSWER_SECONDS
    """Mean time that a request runs."""


def forecast(ticks: Sequence[Measured], now: Measured) -> Forecast:
    """`ticks`: those before `now`, the oldest first."""
    return Forecast(
        _offered_engines((*ticks, now)),
        _dispersion_seconds(ticks),
        _answer_seconds(ticks),
    )


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


def _offered_engines(ticks: Sequence[Measured]) -> float:
    """The highest mean rate over the windows that reach back from now. Of a history that is shorter
    than a window all counts, so that an empty one is not taken for a quiet one."""
    best = seconds = arrived = 0.0
    windows = list(WINDOWS_SECONDS)
    for tick in reversed(ticks):
        if tick.arrived_seconds is None or not tick.interval_seconds:
            continue
        seconds += tick.interval_seconds
        arrived += tick.arrived_seconds
        while windows and seconds >= windows[0] - 1e-6:
            best = max(best, arrived / seconds)
            windows.pop(0)
        if not windows:
            return best
    return max(best, arrived / seconds) if seconds >= WINDOWS_SECONDS[0] / 2 else best


def _dispersion_seconds(ticks: Sequence[Measured]) -> float:
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
        return PRIOR_DISPERSION
    seen = squares / pairs / (work / samples)
    return (PRIOR_SAMPLES * PRIOR_DISPERSION + pairs * seen) / (PRIOR_SAMPLES + pairs)


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
