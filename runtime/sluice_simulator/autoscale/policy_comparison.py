"""Compares policies, each with the best of its grid.

The best is what a user who knew the trace could find: the cheapest candidate that reaches the goal,
else the nearest. The goal is 99 %, or what our policy reaches if that is less, so that costs are
compared at equal attainment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
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
class ComparisonRow:
    """A policy's best candidate and its outcome."""

    policy: str
    candidate: Candidate
    outcome: Outcome
    tried: Sequence[tuple[str, Outcome]]
    """All candidates that were replayed, by label."""
    reached: bool
    """Whether it reached the goal of the comparison."""


@dataclass(frozen=True, slots=True)
class FairScene:
    """A scene, and the share that can be demanded of a policy in it."""

    scene: Scene
    reachable: float
    """Share that a fleet reaches if all engines are started in the first second."""

    @property
    def goal(self) -> float:
        return min(GOAL, self.reachable - (REACHABLE - GOAL))


def fair(scene: Scene) -> FairScene:
    """The scene with its reachable share. If not even all engines at once reach enough, arrivals
    before two starts are over do not count, provided that the rest can be reached."""
    (candidate,) = next(iter(POLICIES["all-at-once"](scene)))
    trail, constants = play(scene, candidate), scene.constants
    reachable = outcome(trail, constants).attainment
    later = replace(constants, judged_from_seconds=UNJUDGED_STARTS * constants.boot_seconds)
    if reachable < REACHABLE and scene.trace.seconds > later.judged_from_seconds:
        reachable_later = outcome(trail, later).attainment
        if reachable_later >= REACHABLE:
            return FairScene(replace(scene, constants=later), reachable_later)
    return FairScene(scene, reachable)


Replayed = Callable[[str, int], None]
"""Callback while policies are compared: a policy's name, and its number of further replays done."""


def contest(
    scene: Scene, names: Sequence[str], jobs: int = 1, replayed: Replayed | None = None
) -> tuple[ComparisonRow, ...]:
    """The best of each policy, in the order of `names`, found on `jobs` processes. `replayed` is
    called for up to `most_replays` of each; in other processes once for all."""
    ours = compete(scene, GOAL, OURS, replayed) if OURS in names else None
    goal = min(GOAL, ours.outcome.attainment) if ours else GOAL
    others = [name for name in names if name != OURS]
    if jobs > 1 and len(others) > 1:
        with ProcessPoolExecutor(min(jobs, len(others))) as pool:
            tasks = {pool.submit(compete, scene, goal, name): name for name in others}
            rows = list(_finished(scene, tasks, replayed))
    else:
        rows = [compete(scene, goal, name, replayed) for name in others]
    of = {row.policy: row for row in (*rows, *([ours] if ours else []))}
    return tuple(of[name] for name in names)


def _finished(
    scene: Scene, tasks: dict[Future[ComparisonRow], str], replayed: Replayed | None
) -> Iterator[ComparisonRow]:
    for task in as_completed(tasks):
        yield task.result()
        if replayed:
            replayed(tasks[task], most_replays(scene, tasks[task]))


def most_replays(scene: Scene, name: str) -> int:
    """Maximum number of replays that tune a policy: halving a ladder of n takes as many as n has
    bits."""
    return sum(len(ladder).bit_length() for ladder in POLICIES[name](scene))


def compete(
    scene: Scene, goal: float, name: str, replayed: Replayed | None = None
) -> ComparisonRow:
    """The best candidate of one policy's grid."""
    tried = []
    for ladder in POLICIES[name](scene):
        left = len(ladder).bit_length()
        for pair in _climbed(scene, goal, ladder):
            tried.append(pair)
            left -= 1
            if replayed:
                replayed(name, 1)
        if replayed:
            replayed(name, left)
    best, result = min(tried, key=lambda pair: _rank(pair[1], goal))
    outcomes = [(candidate.label, found) for candidate, found in tried]
    return ComparisonRow(name, best, result, outcomes, result.attainment >= goal)


def play(scene: Scene, candidate: Candidate) -> Trail:
    """Runs one replay."""
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
