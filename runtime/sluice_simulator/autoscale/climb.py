"""Improves a plan in hindsight by hill climbing: one that keeps the goal is made cheaper, change by
change.

A plan has engines of each pool for periods of equal length. A change takes an engine from some
periods in a row, moves an edge, or takes one away here and adds one where requests were missed. The
result is an upper bound of the fewest hours: another plan may need less.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.grids import Scene, plan_candidate, steps_of
from sluice_simulator.autoscale.outcome import Outcome, kept_promise, outcome
from sluice_simulator.autoscale.policies.policy import Plan, Steps
from sluice_simulator.autoscale.policy_comparison import play

PERIOD_SECONDS: Final = 10.0
MISSED_COST: Final = 30.0
"""Cost of one more missed request beyond the goal, per share of the requests, in shares of the
hours."""
SPARE_VALUE: Final = 8.0
"""Value of one request fewer within the goal: it lets another change do without an engine."""
PATIENCE: Final = 25
"""Changes without a gain after which the value of spare requests is halved."""

Periods = Mapping[Role, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan, its outcome, and the arrival times of the requests that it missed."""

    periods: Periods
    outcome: Outcome
    missed_seconds: Sequence[float]


def climb(
    scene: Scene,
    start: Mapping[Role, Steps],
    goal: float,
    draw: random.Random,
    go_on: Callable[[], bool],
) -> Mapping[Role, Steps]:
    """The cheapest plan that keeps the goal, of those tried while `go_on` is true; `start`, if none
    is cheaper."""
    best, current = start, _tried(scene, _periods(scene, start))
    fewest, spare_value, in_vain = _hours(scene, start, goal), SPARE_VALUE, 0
    while go_on():
        other = _tried(scene, _changed(scene, current, draw))
        cost, known = (_cost(tried.outcome, goal, spare_value) for tried in (other, current))
        current, in_vain = (other, 0) if cost < known else (current, in_vain + 1)
        if in_vain == PATIENCE:
            spare_value, in_vain = spare_value / 2, 0
        hours = other.outcome.replica_hours
        if other.outcome.attainment >= goal and hours < fewest:
            best, fewest = _steps(other.periods), hours
    return best


def _hours(scene: Scene, steps: Mapping[Role, Steps], goal: float) -> float:
    result = outcome(play(scene, plan_candidate(scene, "start", steps)), scene.constants)
    return result.replica_hours if result.attainment >= goal else float("inf")


def _tried(scene: Scene, periods: Periods) -> Tried:
    trail, constants = play(scene, plan_candidate(scene, "tried", _steps(periods))), scene.constants
    missed = [
        work.arrival_seconds
        for work in trail.works
        if work.arrival_seconds >= constants.judged_from_seconds
        and not kept_promise(work, constants)
    ]
    return Tried(periods, outcome(trail, constants), missed)


def _cost(result: Outcome, goal: float, spare_value: float) -> float:
    """Replica-hours, made comparable at unequal shares."""
    above = result.attainment - goal
    return result.replica_hours * (1 - (spare_value if above > 0 else MISSED_COST) * above)


def _periods(scene: Scene, steps: Mapping[Role, Steps]) -> Periods:
    """Number of engines in the middle of each period."""
    middles = [
        (period + 0.5) * PERIOD_SECONDS
        for period in range(int(scene.trace.seconds / PERIOD_SECONDS) + 1)
    ]
    plan = Plan(steps)
    return {role: [plan.engines(role, middle) for middle in middles] for role in steps}


def _steps(periods: Periods) -> Mapping[Role, Steps]:
    return {role: steps_of(engines, PERIOD_SECONDS) for role, engines in periods.items()}


def _changed(scene: Scene, tried: Tried, draw: random.Random) -> Periods:
    periods = {role: list(engines) for role, engines in tried.periods.items()}
    engines = periods[draw.choice(list(periods))]
    kind = draw.random()
    if kind < 0.2:
        _move_edge(engines, draw)
    else:
        _take_away(engines, draw)
    if tried.missed_seconds and kind > 0.6:
        begin = draw.choice(tried.missed_seconds) - scene.constants.boot_seconds
        at = int((begin - draw.uniform(0, 30)) / PERIOD_SECONDS)
        _add(periods[draw.choice(list(periods))], at, draw)
    return periods


def _take_away(engines: list[int], draw: random.Random) -> None:
    """Takes an engine from some consecutive periods; few are as likely as many."""
    length = int(len(engines) ** draw.random())
    begin = draw.randrange(len(engines) - length + 1)
    for period in range(begin, begin + length):
        engines[period] = max(1, engines[period] - 1)


def _move_edge(engines: list[int], draw: random.Random) -> None:
    """Moves an edge, so that the smaller number holds for longer."""
    edges = [at for at in range(1, len(engines)) if engines[at] != engines[at - 1]]
    if not edges:
        return
    edge, by = draw.choice(edges), draw.randint(1, 3)
    rises = engines[edge] > engines[edge - 1]
    moved = range(edge, edge + by) if rises else range(edge - by, edge)
    number = min(engines[edge], engines[edge - 1])
    for period in moved:
        if 0 <= period < len(engines):
            engines[period] = min(engines[period], number)


def _add(engines: list[int], at: int, draw: random.Random) -> None:
    begin = max(0, min(len(engines) - 1, at))
    for period in range(begin, min(len(engines), begin + draw.randint(1, 6))):
        engines[period] += 1
