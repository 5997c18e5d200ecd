"""How many engines serve a given load within the promised latency: queueing formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.forecast import Forecast
from sluice_autoscaler.measured import ItlModel

MAX_BUSY: Final = 0.95
"""Largest fraction of the engines' time for prompts that may be busy, even under a lenient
promise."""
AIMED_LATE: Final = 0.2
"""Fraction of the allowed late requests to aim at, because the load is only an estimate."""
TIGHT_SHARE: Final = 0.25
"""Fraction of an idle engine's time that the promise must leave for prompts; below it no number of
engines helps."""
MAX_ENGINES: Final = 1000
"""Most engines that the API allows in one pool."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Promise that the engines are sized for."""

    queue_seconds: float
    itl_seconds: float | None
    share: float
    """Fraction of the requests that should keep both times, 0 to 1."""


def engines_for(
    load: Forecast, promise: Promise, itl: ItlModel | None = None, running: float = 0.0
) -> int:
    """Fewest engines that keep the promise. For a pool that also decodes, `itl` is its model and
    `running` the number of requests that its engines run in total."""
    if load.offered_engines <= 0 and not running:
        return 0
    for engines in range(1, MAX_ENGINES):
        if keeps(engines, load, promise, itl, running):
            return engines
    return MAX_ENGINES


def engines_for_answers(itl: ItlModel, itl_seconds: float, running: float) -> int:
    """Fewest engines with which a pool that only decodes keeps the time between tokens."""
    spare = itl_seconds - itl.base_seconds
    if spare <= 0:
        return MAX_ENGINES
    return min(MAX_ENGINES, max(1, math.ceil(running * itl.slope_seconds / spare)))


def keeps(
    engines: int, load: Forecast, promise: Promise, itl: ItlModel | None, running: float
) -> bool:
    """Whether `engines` engines keep the promise. Engines keep the time between tokens by choosing
    smaller chunks, which limits their time for prompts. So the queue of prompts is what decides."""
    share = _prompt_share(engines, load, promise, itl, running)
    if share <= 0:
        return False
    busy = load.offered_engines / engines / share
    if busy >= MAX_BUSY:
        return False
    late = late_share(engines, busy, load.dispersion_seconds / share, promise.queue_seconds)
    return late <= AIMED_LATE * (1 - promise.share)


def _prompt_share(
    engines: int, load: Forecast, promise: Promise, itl: ItlModel | None, running: float
) -> float:
    """Fraction of an engine's time that it can spend on prompts in addition to its answers; 0 or
    less if answers alone exceed the promised time between tokens."""
    if itl is None or promise.itl_seconds is None:
        return load.prompt_share
    if itl.base_seconds >= promise.itl_seconds * (1 - TIGHT_SHARE):
        return load.prompt_share  # more engines do not help
    return 1 - itl.decode_seconds(running / engines) / promise.itl_seconds


def late_share(engines: int, busy: float, dispersion_seconds: float, seconds: float) -> float:
    """Fraction of the requests that wait longer than `seconds`. The probability of waiting is that
    of M/M/n (Erlang's C). The waiting time is exponential, with M/G/n's mean in heavy traffic:
    dispersion / (2 n (1 - busy)) (Kingman's bound; Kollerstrom 1974 for n servers)."""
    rate = 2 * engines * (1 - busy) / dispersion_seconds
    return erlang_c(engines, busy * engines) * math.exp(-rate * seconds)


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a request has to wait; `offered`: servers that are busy on average."""
    blocked = 1.0  # Erlang's B, by its recursion
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    busy = offered / servers
    return blocked / (1 - busy + busy * blocked)
