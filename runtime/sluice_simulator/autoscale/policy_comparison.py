"""Compares policies, each with the best of its grid.

The best is what a user who knew the trace could find: the cheapest candidate that reaches the goal,
else the nearest. The goal is 99 %, or what our policy reaches if that is less, so that costs are
compared at equal attainment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sluice_simulator.autoscale.constants import GOAL
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.grids import POLICIES, Candidate, Ladder, Scene
from sluice_simulator.autoscale.outcome import Outcome, Trail, outcome

OURS: Final = "ours"
REACHABLE: Final = 0.995
"""Share that all engines at once must reach for `GOAL` to be demanded of policies."""
UNJUDGED_STARTS: Final = 2


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's best candidate and its outcome."""

    policy: str
    candidate: Candidate
    outcome: Outcome
    tried: Sequence[tuple[str, Outcome]]
    """All candidates that were replayed, by label."""
    reached: bool
    """The goal of the contest."""


@dataclass(frozen=True, slots=True)
class FairScene:
    """A scene with a share that can be demanded of a policy."""

    scene: Scene
    reachable: float
    """The share of a fleet that is asked for in the first second."""

    @property
    def goal(self) -> float:
        return min(GOAL, self.reachable - (REACHABLE - GOAL))


def fair(scene: Scene) -> FairScene:
    """If not even all engines at once reach enough, what comes before two starts are over does not
    count, provided that the rest can be reached."""
    (candidate,) = next(iter(POLICIES["all-at-once"](scene)))
    trail, constants = play(scene, candidate), scene.constants
    reachable = outcome(trail, constants).attainment
    later = replace(constants, judged_from_seconds=UNJUDGED_STARTS * constants.boot_seconds)
    if reachable < REACHABLE and scene.trace.seconds > later.judged_from_seconds:
        reachable_later = outcome(trail, later).attainment
        if reachable_later >= REACHABLE:
            return FairScene(replace(scene, constants=later), reachable_later)
    return FairScene(scene, reachable)


def contest(scene: Scene, names: Sequence[str], jobs: int = 1) -> tuple[Row, ...]:
    """The best of each, in the order of `names`; on `jobs` processes."""
    ours = compete(scene, GOAL, OURS) if OURS in names else None
    goal = min(GOAL, ours.outcome.attainment) if ours else GOAL
    others = [name for name in names if name != OURS]
    task = partial(compete, scene, goal)
    if jobs > 1 and len(others) > 1:
        with ProcessPoolExecutor(min(jobs, len(others))) as pool:
            rows = list(pool.map(task, others))
    else:
        rows = list(map(task, others))
    of = {row.policy: row for row in (*rows, *([ours] if ours else []))}
    return tuple(of[name] for name in names)


def compete(scene: Scene, goal: float, name: str) -> Row:
    """The best of one policy's grid."""
    tried = [
        (candidate, result)
        for ladder in POLICIES[name](scene)
        for candidate, result in _climbed(scene, goal, ladder)
    ]
    best, result = min(tried, key=lambda pair: _rank(pair[1], goal))
    outcomes = [(candidate.label, found) for candidate, found in tried]
    return Row(name, best, result, outcomes, result.attainment >= goal)


def play(scene: Scene, candidate: Candidate) -> Trail:
    """One replay."""
    policy = candidate.policy()
    return AutoscaledFleet(scene.trace, scene.constants, policy, candidate.first).run()


def _climbed(scene: Scene, goal: float, ladder: Ladder) -> Iterator[tuple[Candidate, Outcome]]:
    """The candidates of a ladder that halving tries; the caller needs its last good step."""
    low, high = 0, len(ladder)
    while low < high:
        middle = (low + high) // 2
        result = outcome(play(scene, ladder[middle]), scene.constants)
        yield ladder[middle], result
        if result.attainment >= goal:
            low = middle + 1
        else:
            high = middle


def _rank(result: Outcome, goal: float) -> tuple[bool, float]:
    if result.attainment >= goal:
        return False, result.replica_hours
    return True, -result.attainment
