"""How the time between tokens depends on load, learnt from the history of a pool.

    itl = (base + slope x running requests of an engine) / (1 - share of its time for prompts)

Until the load has varied enough to tell base from slope, base is taken as 0, so that no engine is
given up on a guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sluice_autoscaler.measured import ItlModel, Measured

ENOUGH_SAMPLES: Final = 36
ENOUGH_SPREAD: Final = 0.3
"""Smallest spread of the load, (most - least) / most, that suffices for learning."""
MAX_PREFILL_SHARE: Final = 0.9
RECENT_SECONDS: Final = 10.0
"""Period over which an engine reports its mean time between tokens, so running requests and work
are averaged over it, too. Single samples have a pattern where requests come regularly."""
FIRST_SECONDS: Final = 1.0
"""Assumed interval of the first sample, in seconds."""

Point = tuple[float, float]
"""Running requests of an engine, and its time between tokens without prompts."""


def itl_model(ticks: Sequence[Measured], now: Measured) -> ItlModel | None:
    """Model of the time between tokens at `now`. `ticks`: earlier ticks.

    A learnt model is kept until the load varies again; meanwhile only its slope follows the
    measurements. None while no answer runs.
    """
    *before, last = _points((*ticks, now))
    if last is None:
        return None
    points = [point for point in before if point is not None]
    if len(points) >= ENOUGH_SAMPLES and _spread(points) >= ENOUGH_SPREAD:
        return _fitted(points)
    former = next((tick.itl for tick in reversed(ticks) if tick.itl), None)
    running, seconds = last
    base = min(former.base_seconds, seconds) if former else 0.0
    return ItlModel(base, (seconds - base) / running)


def _points(ticks: Sequence[Measured]) -> Iterator[Point | None]:
    """Points, one for each tick, over the seconds before it; None where no answer runs."""
    recent, seconds = deque[Measured](), 0.0
    for tick in ticks:
        recent.append(tick)
        seconds += tick.interval_seconds
        while seconds - recent[0].interval_seconds >= RECENT_SECONDS:
            seconds -= recent.popleft().interval_seconds
        yield _point(tick, recent)


def _point(tick: Measured, recent: Iterable[Measured]) -> Point | None:
    """Point of a tick. Running requests are a mean over the rows of steps, as the time between them
    is."""
    if tick.itl_seconds is None or not tick.engines or not tick.running_requests:
        return None
    engine_seconds = work = answers = tokens = 0.0
    for near in recent:
        seconds = near.interval_seconds or FIRST_SECONDS
        engine_seconds += near.engines * seconds
        work += near.arrived_seconds or 0.0
        answers += near.running_requests * seconds
        if near.engines:
            tokens += near.running_requests**2 / near.engines * seconds
    share = min(MAX_PREFILL_SHARE, work / engine_seconds)
    return tokens / answers, tick.itl_seconds * (1 - share)


def _spread(points: Sequence[Point]) -> float:
    most = max(running for running, _ in points)
    return (most - min(running for running, _ in points)) / most


def _fitted(points: Sequence[Point]) -> ItlModel:
    """Least squares, with neither coefficient negative."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    square = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / square
    slope = min(max(0.0, slope), mean_y / mean_x)
    return ItlModel(mean_y - slope * mean_x, slope)
