"""What nobody can reach is not demanded, and does not count where the rest can be reached."""

from __future__ import annotations

import pytest
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE, GOAL
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.policy_comparison import FairScene, fair
from sluice_simulator.traces.request import Trace, TraceRequest

LATER = tuple(TraceRequest(70.0 + second, 500, 10) for second in range(60))
CROWD = tuple(TraceRequest(5.0, 2000, 10) for _ in range(60))
"""More than two engines can serve in time, before any other can be there."""


def fair_scene(*requests: TraceRequest) -> FairScene:
    return fair(Scene(Trace("made", requests), AZURE, (Role.MIXED,)))


def test_what_can_be_reached_counts_from_the_begin() -> None:
    found = fair_scene(*LATER)
    assert (found.reachable, found.goal) == (1.0, GOAL)
    assert found.scene.constants.judged_from_seconds == 0


def test_a_crowd_before_any_start_is_over_does_not_count() -> None:
    found = fair_scene(*CROWD, *LATER)
    assert (found.reachable, found.goal) == (1.0, GOAL)
    assert found.scene.constants.judged_from_seconds == 2 * AZURE.boot_seconds


def test_a_crowd_that_no_start_helps_lowers_the_goal() -> None:
    late = tuple(TraceRequest(100.0, 2000, 10) for _ in range(900))
    found = fair_scene(*LATER[:30], *late)
    assert found.scene.constants.judged_from_seconds == 0
    assert found.reachable < 0.9
    assert found.goal == pytest.approx(found.reachable - 0.005)
