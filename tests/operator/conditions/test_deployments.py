"""How far a Deployment has come."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.conditions.deployments import given_up, progress
from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import complete, live, pods, pool_plan


def _deployment(replicas: int = 2) -> Manifest:
    found = pool_plan({"pools": {"mixed": {"replicas": replicas}}}).deployment
    assert found is not None
    return found


def test_a_complete_deployment() -> None:
    reached = progress(_deployment(), complete(_deployment()))
    assert (reached.applied, reached.complete, reached.failure) == (True, True, None)


def test_one_that_does_not_exist() -> None:
    assert not progress(_deployment(), None).applied


def test_one_that_was_applied_from_another_manifest() -> None:
    reached = progress(_deployment(3), complete(_deployment(2)))
    assert not reached.applied
    assert not reached.complete


@pytest.mark.parametrize(
    "change",
    [
        {"observedGeneration": 0},
        {"updatedReplicas": 1},
        {"availableReplicas": 1},
        {"replicas": 3},
        {"replicas": 0, "updatedReplicas": 0, "availableReplicas": 0},
    ],
)
def test_one_that_is_not_complete(change: dict[str, Any]) -> None:
    found = complete(_deployment())
    found["status"] = found["status"] | change
    assert not progress(_deployment(), found).complete


def test_none_wanted_is_complete_at_once() -> None:
    assert progress(_deployment(0), live(_deployment(0), observedGeneration=1)).complete


def test_a_condition_of_an_older_generation_is_not_believed() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    found = live(_deployment(), generation=2, observedGeneration=1, conditions=[late])
    assert not progress(_deployment(), found).deadline_exceeded
    found["status"]["observedGeneration"] = 2
    assert progress(_deployment(), found).deadline_exceeded


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated"])
def test_a_pod_that_waits_in_a_queue_is_not_given_up_at_the_deadline(reason: str) -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    reached = progress(_deployment(), live(_deployment(), observedGeneration=1, conditions=[late]))
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason}
    waiting = pods(_deployment(), 1, phase="Pending", conditions=[scheduled])
    assert given_up(reached, waiting) is (reason == "Unschedulable")
    assert given_up(reached, [])
