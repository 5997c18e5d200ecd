"""How the time between tokens depends on load, learnt from the history of a pool.

    itl = (base + slope x running requests of an engine) / (1 - share of its time for prompts)

Before the load has varied enough to tell base from slope, all of it is taken to grow with the load,
so that no engine is given up on a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluice_autoscaler.measured import ItlModel, Measured

ENOUGH_SAMPLES: Final = 12
LATELY_SAMPLES: Final = 20
EVERY: Final = 3
"""Only every n-th sample counts: each is a mean over several intervals."""
ENOUGH_SPREAD: Final = 0.3
"""Of the load: (most - least) / most."""
MAX_PREFILL_SHARE: Final = 0.9


def itl_model(ticks: Sequence[Measured], now: Measured) -> ItlModel | None:
    """`ticks`: those before `now`.

    A learnt model is kept, and only its slope follows what is measured now, until the load varies
    again. None while no answer runs.
    """
    last = _point(now, _lately(ticks))
    if last is None:
        return None
    points = [point for tick in ticks[::-EVERY] if (point := _point(tick, _prompt_share(tick)))]
    if len(points) >= ENOUGH_SAMPLES and _spread(points) >= ENOUGH_SPREAD:
        return _fitted(points)
    former = next((tick.itl for tick in reversed(ticks) if tick.itl), None)
    running, seconds = last
    base = min(former.base_seconds, seconds) if former else 0.0
    return ItlModel(base, (seconds - base) / running)


def _lately(ticks: Sequence[Measured]) -> float:
    """Share of their time that engines have computed prompts, without the last sample."""
    shares = [_prompt_share(tick) for tick in ticks[-LATELY_SAMPLES:]]
    return sum(shares) / len(shares) if shares else 0.0


def _prompt_share(tick: Measured) -> float:
    """Of an engine's time, what prompts took that arrived since the tick before."""
    if not tick.arrived_seconds or not tick.interval_seconds or not tick.engines:
        return 0.0
    return min(MAX_PREFILL_SHARE, tick.arrived_seconds / tick.interval_seconds / tick.engines)


def _point(tick: Measured, prompt_share: float) -> tuple[float, float] | None:
    """Running requests of an engine, and its time between tokens without prompts."""
    if tick.itl_seconds is None or not tick.engines or not tick.running_requests:
        return None
    return tick.running_requests / tick.engines, tick.itl_seconds * (1 - prompt_share)


def _spread(points: Sequence[tuple[float, float]]) -> float:
    most = max(running for running, _ in points)
    return (most - min(running for running, _ in points)) / most


def _fitted(points: Sequence[tuple[float, float]]) -> ItlModel:
    """Least squares, with neither coefficient negative."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    square = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / square
    slope = min(max(0.0, slope), mean_y / mean_x)
    return ItlModel(mean_y - slope * mean_x, slope)
