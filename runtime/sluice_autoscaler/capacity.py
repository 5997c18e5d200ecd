"""How many engines serve a given load within the promised latency: queueing formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.forecast import Forecast
from sluice_autoscaler.measured import ItlModel

MAX_BUSY: Final = 0.95
"""Largest busy share of the time that engines have for prompts, however lenient the promise."""
AIMED_LATE: Final = 0.2
"""Share of the allowed late requests to aim at: the load is an estimate."""
TIGHT_SHARE: Final = 0.25
"""A promise that leaves prompts less of an idle engine's time: no number of engines keeps it."""
MAX_ENGINES: Final = 1000
"""The most that the API allows in one pool."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Promise that the engines are sized for."""

    queue_seconds: float
    itl_seconds: float | None
    share: float
    """Share of the requests that are to be within both, 0 to 1."""


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


def engines_for_answers(itl: ItlModel, itl_seconds: float, running: float) -> int:
    """Fewest engines that keep the time between tokens of a pool that only decodes."""
    spare = itl_seconds - itl.base_seconds
    if spare <= 0:
        return MAX_ENGINES
    return min(MAX_ENGINES, max(1, math.ceil(running * itl.slope_seconds / spare)))


def keeps(
    engines: int, load: Forecast, promise: Promise, itl: ItlModel | None, running: float
) -> bool:
    """Whether this many engines keep the promise. While they compute prompts, they keep the time
    between tokens by themselves, with smaller chunks. It bounds the time for prompts, and the queue
    is what is sized."""
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
    """Share of an engine's time that prompts can get in addition to its answers; 0 or less where
    answers alone take longer between tokens than promised."""
    if itl is None or promise.itl_seconds is None:
        return load.prompt_share
    if itl.base_seconds >= promise.itl_seconds * (1 - TIGHT_SHARE):
        return load.prompt_share  # more engines do not help
    return 1 - itl.decode_seconds(running / engines) / promise.itl_seconds


def late_share(engines: int, busy: float, dispersion_seconds: float, seconds: float) -> float:
    """Share of the requests that wait longer than `seconds`: whether a request waits at all is that
    of M/M/n (Erlang's C), for how long is exponential with the mean of M/G/n in heavy traffic,
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
