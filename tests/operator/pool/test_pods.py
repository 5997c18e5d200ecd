"""What the autoscaler is told of a pool's pods."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.pods import pool_pods
from sluice_operator.scaled import DELETION_COST, MOVED

from tests.operator.examples import pods, pool, pool_observed, pool_plan


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated"])
def test_pods_without_a_place_are_told_and_named_as_nobody_to_end(reason: str) -> None:
    """The scheduler may not look at a pod that Kueue holds back with a gate."""
    deployment = pool_plan().deployment
    assert deployment is not None
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason}
    found = pods(deployment, 2, phase="Pending", conditions=[scheduled])
    told = pool_pods(pool_observed(pool(), (deployment,), found))
    assert (told.live, told.unschedulable, told.starting, told.names) == (2, 2, 0, frozenset())
    assert told.queue == ""


def test_the_queue_that_gated_pods_wait_for_is_told() -> None:
    deployment = pool_plan().deployment
    assert deployment is not None
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    plain, waiting = pods(deployment, 2, phase="Pending", conditions=[scheduled])
    labels = waiting["metadata"]["labels"] | {"kueue.x-k8s.io/queue-name": "gpus"}
    waiting = waiting | {"metadata": waiting["metadata"] | {"labels": labels}}
    admitted = waiting | {"status": {"phase": "Pending"}}

    def told(gate: str, *others: Manifest) -> tuple[str, int, int]:
        gated = waiting | {"spec": waiting["spec"] | {"schedulingGates": [{"name": gate}]}}
        counts = pool_pods(pool_observed(pool(), (deployment,), [plain, admitted, gated, *others]))
        return counts.queue, counts.queued, counts.unschedulable

    no_node = scheduled | {"reason": "Unschedulable"}
    unplaced = waiting | {"status": {"phase": "Pending", "conditions": [no_node]}}
    assert told("kueue.x-k8s.io/admission") == ("gpus", 1, 2)
    assert told("kueue.x-k8s.io/admission", unplaced) == ("gpus", 1, 3)
    assert told("example.com/licence") == ("", 0, 2), "it is not Kueue that waits"


def test_of_pods_without_their_claims_it_is_told_when_they_were_made() -> None:
    claimed = {"accelerator": {"claimTemplate": "gpus", "count": 1}}
    deployment = pool_plan(claimed).deployment
    assert deployment is not None
    (pod,) = pods(deployment, 1, phase="Pending")
    made = pod | {"metadata": pod["metadata"] | {"creationTimestamp": "2026-01-02T03:04:05Z"}}
    told = pool_pods(pool_observed(pool(claimed), (deployment,), [made]))
    assert (told.unschedulable, told.claimless) == (1, (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),))


def test_only_live_pods_are_named_and_only_the_lowest_cost_is_a_mark() -> None:
    deployment = pool_plan().deployment
    assert deployment is not None
    marked, dear, leaving, plain = pods(deployment, 4)

    def with_metadata(pod: Manifest, **more: object) -> Manifest:
        return pod | {"metadata": pod["metadata"] | more}

    found = [
        with_metadata(marked, annotations={DELETION_COST: "-1"}),
        with_metadata(dear, annotations={DELETION_COST: "7"}),
        with_metadata(
            leaving, annotations={DELETION_COST: "-1"}, deletionTimestamp="2026-01-02T03:04:05Z"
        ),
        plain,
    ]
    told = pool_pods(pool_observed(pool(), (deployment,), found))
    assert told.names == {each["metadata"]["name"] for each in (marked, dear, plain)}
    assert told.victims == {marked["metadata"]["name"]}


def test_a_start_has_phases_from_the_times_of_its_pod() -> None:
    deployment = pool_plan().deployment
    assert deployment is not None

    def started(seconds: int, running: object) -> Manifest:
        times = {"PodScheduled": 5, "Initialized": 8, "Ready": 5 + seconds}
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": f"2026-01-02T03:04:{at:02}Z"}
            for kind, at in times.items()
        ]
        later = {"running": {"startedAt": "2026-01-02T03:04:30Z"}}
        statuses = [{"name": "engine", "state": running}, {"name": "other", "state": later}]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": statuses}
        return pods(deployment, 1, **status)[0]

    def told(*found: Manifest) -> tuple[float | None, dict[str, float]]:
        counted = pool_pods(pool_observed(pool(), (deployment,), list(found)))
        return counted.start_seconds, dict(counted.start_phases)

    running = {"running": {"startedAt": "2026-01-02T03:04:20Z"}}
    assert told(started(50, {}), started(40, running)) == (40, {"model": 3.0, "image": 12.0})
    assert told(started(40, {})) == (40, {"model": 3.0})
    assert told(*pods(deployment, 1)) == (None, {})


def test_a_start_is_known_from_engines_that_have_started_once() -> None:
    deployment = pool_plan().deployment
    assert deployment is not None

    def conditions(ready: str, status: str = "True") -> list[dict[str, str]]:
        placed = {"type": "PodScheduled", "status": "True"}
        return [
            placed | {"lastTransitionTime": "2026-01-02T03:04:05Z"},
            {"type": "Ready", "status": status, "lastTransitionTime": f"2026-01-02T{ready}Z"},
        ]

    def told(*conditions: list[dict[str, str]], restarts: int = 0) -> float | None:
        status = {"phase": "Running", "containerStatuses": [{"restartCount": restarts}]}
        found = [pods(deployment, 1, **status, conditions=each)[0] for each in conditions]
        return pool_pods(pool_observed(pool(), (deployment,), found)).start_seconds

    median, slow, not_ready = ("03:04:47",), ("03:05:45",), ("03:04:06", "False")
    assert told(*(conditions(*each) for each in (slow, median, ("03:04:06",), not_ready))) == 42
    several = pods(deployment, 3)
    for pod, each in zip(several, (slow, median, ("03:04:06",)), strict=True):
        pod["status"] = {"phase": "Running", "conditions": conditions(*each)}
    counted = pool_pods(pool_observed(pool(), (deployment,), several))
    assert counted.start_pod == several[1]["metadata"]["name"]
    assert told(conditions(*not_ready)) is None
    assert told(conditions("07:04:47")) is None, "its node was lost for hours"
    assert told(conditions(*median), restarts=1) is None
    moved = pods(deployment, 1, phase="Running", conditions=conditions(*median))[0]
    moved["metadata"]["annotations"] = {MOVED: "{}"}
    told_of_it = pool_pods(pool_observed(pool(), (deployment,), [moved]))
    assert told_of_it.start_seconds is None, "it is ready again since it has its new role"
    assert (told_of_it.start_phases, told_of_it.start_pod) == ({}, "")
    silent = pods(deployment, 1)
    assert pool_pods(pool_observed(pool(), (deployment,), silent)).start_seconds is None
