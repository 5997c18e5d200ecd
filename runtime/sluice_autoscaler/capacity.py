"""How many engines serve a given load within the promised latency: queueing formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from sluice_autoscaler.forecast import Forecast
from sluice_autoscaler.measured import ItlModel

BALANCE: Final = 0.2
"""Of the variance of the work of one engine: what is left of it since the router gives requests to
the less loaded of two. Found by replay."""
MAX_DISPERSION: Final = 0.35
"""Of the length of an answer: a prompt that takes longer comes to an engine with few answers."""
MIN_SHARE: Final = 0.25
"""Of an engine's time that prompts may take, however strict the promise."""
MAX_SHARE: Final = 0.85
"""However lenient it is."""
MAX_ENGINES: Final = 1000
"""The most that the API allows in one pool."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the engines are sized for."""

    queue_seconds: float
    itl_seconds: float | None
    share: float
    """Of the requests that are to be within both, 0 to 1."""


def engines_for(
    load: Forecast, promise: Promise, itl: ItlModel | None = None, running: float = 0.0
) -> int:
    """Fewest engines that keep the promise. `itl`, `running`: of a pool that decodes as well, and
    the requests that all of its engines run."""
    if load.offered_engines <= 0 and not running:
        return 0
    for engines in range(1, MAX_ENGINES):
        if keeps(engines, load, promise, itl, running):
            return engines
    return MAX_ENGINES


def keeps(
    engines: int, load: Forecast, promise: Promise, itl: ItlModel | None, running: float
) -> bool:
    """Whether this many engines keep the promise."""
    busy = load.busy_engines / engines
    share = load.offered_engines / engines
    return busy <= _queue_share(engines, load, promise) and _peak_share(
        share, load, promise
    ) <= _itl_share(engines, promise, itl, running)


def _queue_share(engines: int, load: Forecast, promise: Promise) -> float:
    """Utilisation at which few requests wait longer than promised.

    In heavy traffic the wait of M/G/n is exponential, with mean dispersion / (2 n (1 - share))
    (Kingman's bound; Kollerstrom 1974 for n servers). Work is what it takes beside what decodes.
    """
    exceeding = math.log(1 / (1 - promise.share))
    dispersion = load.dispersion_seconds / load.prompt_share
    slack = dispersion * exceeding / (2 * engines * promise.queue_seconds)
    return min(MAX_SHARE, max(MIN_SHARE, 1 - slack))


def _peak_share(share: float, load: Forecast, promise: Promise) -> float:
    """Share of an engine's time that goes to prompts while an answer runs: its mean and what comes
    on top of it for all but few answers."""
    deviations = NormalDist().inv_cdf(promise.share) * math.sqrt(BALANCE)
    dispersion = min(load.dispersion_seconds, MAX_DISPERSION * load.answer_seconds)
    variance = dispersion * share / load.answer_seconds
    return share + deviations * math.sqrt(variance)


def _itl_share(engines: int, promise: Promise, itl: ItlModel | None, running: float) -> float:
    """Share of their time that prompts may take from answers."""
    if itl is None or promise.itl_seconds is None:
        return math.inf
    if itl.base_seconds >= promise.itl_seconds * (1 - MIN_SHARE):
        return MAX_SHARE  # more engines do not help: the queue alone counts
    return 1 - itl.decode_seconds(running / engines) / promise.itl_seconds
