"""Every policy on every scene, on some processes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

from sluice_simulator.autoscale.constants import GOAL
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.policy_comparison import (
    OURS,
    ComparisonRow,
    FairScene,
    compete,
    fair,
)

from benchmarks.autoscale import plans

BOOT_SECONDS: Final = 30.0
LONG_BOOT_SECONDS: Final = 90.0
"""Seconds of a slow start, in the scenes for our policy and the plan alone."""
RIVALS: Final = ("hpa", "keda-tuned", "static", "keda")


@dataclass(frozen=True, slots=True)
class Result:
    """A scene with one time of a start: the best of each policy."""

    name: str
    fair: FairScene
    rows: Mapping[str, ComparisonRow]

    @property
    def boot_seconds(self) -> float:
        return self.fair.scene.constants.boot_seconds

    @property
    def ours(self) -> ComparisonRow:
        return self.rows[OURS]

    @property
    def plan(self) -> ComparisonRow:
        return self.rows[plans.POLICY]

    @property
    def demands_goal(self) -> bool:
        """Whether 99 % can be demanded, because all engines at once would reach so much."""
        return self.fair.goal >= GOAL

    @property
    def ours_by_plan(self) -> float:
        return self.ours.outcome.replica_hours / self.plan.outcome.replica_hours


def measure(
    scenes: Mapping[str, Scene], climb_seconds: float | None, pool: Executor
) -> list[Result]:
    """Results of each scene, first with the usual starts, then with long ones."""
    cases = _cases(scenes)
    began = list(pool.map(_begun, [scene for _, scene in cases]))
    tasks = [
        (number, name, policy)
        for policy in (*RIVALS, plans.POLICY)
        for number, (name, scene) in enumerate(cases)
        if policy == plans.POLICY or scene.constants.boot_seconds == BOOT_SECONDS
    ]
    found = pool.map(
        _row,
        [policy for _, _, policy in tasks],
        [began[number] for number, _, _ in tasks],
        [plans.stored(name, cases[number][1].constants.boot_seconds) for number, name, _ in tasks],
        [climb_seconds] * len(tasks),
    )
    rows: list[dict[str, ComparisonRow]] = [{OURS: ours} for _, ours in began]
    for (number, name, policy), row in zip(tasks, found, strict=True):
        rows[number][policy] = row
        if policy == plans.POLICY and row.reached and climb_seconds:
            boot_seconds = cases[number][1].constants.boot_seconds
            plans.store(name, boot_seconds, plans.plans_of(row))
    return [
        Result(name, scene, of_scene)
        for (name, _), (scene, _), of_scene in zip(cases, began, rows, strict=True)
    ]


def ours_alone(scenes: Mapping[str, Scene], pool: Executor) -> list[Result]:
    """Results of our rule without rivals and plans, in the order of `measure`."""
    cases = _cases(scenes)
    began = pool.map(_begun, [scene for _, scene in cases])
    return [
        Result(name, scene, {OURS: ours})
        for (name, _), (scene, ours) in zip(cases, began, strict=True)
    ]


def _cases(scenes: Mapping[str, Scene]) -> list[tuple[str, Scene]]:
    boots = (BOOT_SECONDS, LONG_BOOT_SECONDS)
    return [(name, _starting_in(scenes[name], boot)) for boot in boots for name in scenes]


def _starting_in(scene: Scene, boot_seconds: float) -> Scene:
    return replace(scene, constants=replace(scene.constants, boot_seconds=boot_seconds))


def _begun(scene: Scene) -> tuple[FairScene, ComparisonRow]:
    """The attainable share of a scene, and our own result, to whose share the others are tuned."""
    found = fair(scene)
    return found, compete(found.scene, GOAL, OURS)


def _row(
    policy: str,
    begun: tuple[FairScene, ComparisonRow],
    known: plans.Plans | None,
    climb_seconds: float | None,
) -> ComparisonRow:
    found, ours = begun
    if policy == plans.POLICY:
        return plans.plan_row(found, known, climb_seconds)
    return compete(found.scene, min(GOAL, ours.outcome.attainment), policy)
