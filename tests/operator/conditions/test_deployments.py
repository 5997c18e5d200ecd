"""How far a Deployment has come."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sluice_operator.conditions.deployments import (
    given_up,
    progress,
    refused_again_seconds,
    refused_for_long,
    shortfall,
)
from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import NOW, complete, live, pods, pool_plan

SINCE = "2026-01-02T03:04:05Z"
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


def _late(deployment: Manifest) -> Manifest:
    """It has come no further by its deadline."""
    late = {
        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "lastTransitionTime": SINCE,
    }  # fmt: skip
    return live(deployment, observedGeneration=1, conditions=[late])


def _deployment(replicas: int = 2) -> Manifest:
    found = pool_plan({"replicas": replicas}).deployment
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
    assert given_up(reached, waiting, NOW) is (reason == "Unschedulable")
    assert given_up(reached, [], NOW)


PULLS: Manifest = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
CRASHES: Manifest = {"lastState": {"terminated": {"exitCode": 1}}, "restartCount": 2}
LOADS: Manifest = {"started": True, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("beside", "is_given_up"), [(PULLS, True), (CRASHES, True), ({}, True), (LOADS, False)]
)
def test_a_pod_in_a_queue_excuses_no_other_pod(beside: Manifest, *, is_given_up: bool) -> None:
    reached = progress(_deployment(), _late(_deployment()))
    gated, other = pods(_deployment(), 2, phase="Pending", conditions=[GATED])
    engine = {"name": "engine", "ready": False, **beside}
    other = other | {"status": {"phase": "Running", "containerStatuses": [engine]}}
    assert given_up(reached, [gated, other], NOW) is is_given_up
    ready, leaving = pods(_deployment(), 2)
    leaving = leaving | {"metadata": leaving["metadata"] | {"deletionTimestamp": SINCE}}
    assert not given_up(reached, [gated, ready, leaving], NOW)
    updated = shortfall(reached, [gated, other], "0 of 2 engines ready", NOW)
    assert (updated.reason == "SchedulingGated") is (beside is LOADS)
    assert (updated.reason == "ProgressDeadlineExceeded") is (beside == {})


@pytest.mark.parametrize(
    ("queue", "placed", "is_given_up"),
    [
        ("gpus", "2026-01-02T03:04:06Z", False),
        ("gpus", "2026-01-02T03:04:04Z", True),
        ("", "2026-01-02T03:04:06Z", True),
    ],
)
def test_a_pod_that_its_queue_lets_after_the_deadline_may_start(
    queue: str, placed: str, *, is_given_up: bool
) -> None:
    """The Deployment's condition stays until the pod is ready."""
    reached = progress(_deployment(), _late(_deployment()))
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": placed}
    (pod,) = pods(_deployment(), 1, phase="Pending", conditions=[scheduled])
    labels = pod["metadata"]["labels"] | {"kueue.x-k8s.io/queue-name": queue}
    pod = pod | {"metadata": pod["metadata"] | {"labels": labels}}
    assert given_up(reached, [pod], NOW) is is_given_up
    ended = {"name": "engine", "ready": False, **CRASHES}
    failing = pod | {"status": pod["status"] | {"containerStatuses": [ended]}}
    assert given_up(reached, [failing], NOW)


def _refused(**condition: Any) -> Manifest:
    """The API server refuses pods of it."""
    failing = {
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": "exceeded quota", "lastTransitionTime": SINCE,
    }  # fmt: skip
    return live(_deployment(), observedGeneration=1, conditions=[failing | condition])


@pytest.mark.parametrize(
    ("found", "passed", "is_long", "again"),
    [
        (_refused(), 0, False, 30),
        (_refused(), 29, False, 1),
        (_refused(), 30, True, None),
        (_refused(), 3600, True, None),
        (_refused(), -3600, False, 30),
        (_refused(status="False"), 3600, False, None),
        (_late(_deployment()), 3600, False, None),
        (None, 3600, False, None),
    ],
    ids=["now", "just before", "just then", "long ago", "by a fast clock", "over", "late", "none"],
)
def test_pods_that_are_refused_need_a_person_after_a_while(
    found: Manifest | None, passed: int, *, is_long: bool, again: float | None
) -> None:
    reached = progress(_deployment(), found)
    now = datetime.fromisoformat(SINCE) + timedelta(seconds=passed)
    assert refused_for_long(reached, pods(_deployment(), 1), now) is is_long
    assert refused_again_seconds(reached, now) == again


def test_a_pod_that_drains_may_hold_what_the_refused_one_lacks() -> None:
    reached = progress(_deployment(), _refused())
    now = datetime.fromisoformat(SINCE) + timedelta(hours=1)
    ready, leaving = pods(_deployment(), 2)
    leaving = leaving | {"metadata": leaving["metadata"] | {"deletionTimestamp": SINCE}}
    assert not refused_for_long(reached, [ready, leaving], now)
    assert refused_for_long(reached, [ready], now)
    assert not refused_for_long(None, [], now)
