"""A climb ends at a plan that keeps the goal, and is never dearer than where it began."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.climb import climb
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.grids import Scene, plan_candidate
from sluice_simulator.autoscale.outcome import Outcome, outcome
from sluice_simulator.autoscale.policies.policy import Steps
from sluice_simulator.autoscale.policy_comparison import play

from tests.simulator.autoscale.scenes import chats

GOAL = 0.95


def changes(number: int) -> Callable[[], bool]:
    numbers = count()
    return lambda: next(numbers) < number


def reached(scene: Scene, steps: dict[Role, Steps]) -> Outcome:
    return outcome(play(scene, plan_candidate(scene, "", steps)), scene.constants)


@pytest.mark.process
@pytest.mark.parametrize("roles", [(Role.MIXED,), (Role.PREFILL, Role.DECODE)])
def test_a_climb_saves_hours_and_keeps_the_goal(roles: tuple[Role, ...]) -> None:
    scene = Scene(chats(100.0, 2.0), AZURE, roles)
    generous: dict[Role, Steps] = dict.fromkeys(roles, ((0.0, 6),))
    found = dict(climb(scene, generous, GOAL, random.Random(1), changes(40)))
    before, after = reached(scene, generous), reached(scene, found)
    assert before.attainment >= GOAL <= after.attainment
    assert after.replica_hours < 0.9 * before.replica_hours


def test_without_time_the_plan_stays() -> None:
    scene = Scene(chats(30.0, 1.0), AZURE, (Role.MIXED,))
    start: dict[Role, Steps] = {Role.MIXED: ((0.0, 3), (12.0, 2))}
    assert climb(scene, start, GOAL, random.Random(0), changes(0)) == start
