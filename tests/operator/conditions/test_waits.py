"""How long pods may wait before a person is called, by the operator's own clock."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sluice_operator.conditions.deployments import (
    given_up,
    progress,
    seconds_to_bound,
    shortfall,
)
from sluice_operator.conditions.waits import (
    GATED_SECONDS,
    LEAVING_SECONDS,
    MOUNT_SECONDS,
    not_leaving,
)
from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import NOW, complete, pods, pool_plan

SINCE = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
SECOND = timedelta(seconds=1)
NO_PLACE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none"}
GATED = NO_PLACE | {"reason": "SchedulingGated"}
PULLS = [{"name": "engine", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]
LOADS = [{"name": "engine", "started": True, "state": {"running": {}}}]
UNREADY = {"type": "Ready", "status": "False"}
DEPLOYMENT = pool_plan({"replicas": 2}).deployment or {}
BOUND = DEPLOYMENT["spec"]["progressDeadlineSeconds"]


def once_complete(**status: object) -> Manifest:
    """A Deployment that was complete, which Kubernetes gives no deadline, and is not any more."""
    live = complete(DEPLOYMENT)
    return live | {"status": live["status"] | {"availableReplicas": 1, **status}}


def waiting(condition: Manifest | None, **status: object) -> Manifest:
    """A pod that waits since `SINCE`."""
    conditions = [condition | {"lastTransitionTime": SINCE}] if condition else []
    (pod,) = pods(DEPLOYMENT, 1, phase="Pending", conditions=conditions, **status)
    return pod | {"metadata": pod["metadata"] | {"creationTimestamp": SINCE}}


def claiming() -> Manifest:
    pod = waiting(None)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    return pod | {"spec": pod["spec"] | {"resourceClaims": claims}}


@pytest.mark.parametrize(
    ("pod", "bound", "told"),
    [
        (waiting(NO_PLACE), BOUND, "none"),
        (waiting(GATED), GATED_SECONDS, "scheduling gates"),
        (waiting(UNREADY, containerStatuses=PULLS), BOUND, "image"),
        (waiting(UNREADY), BOUND, "no progress within the deadline"),
        (claiming(), BOUND, "ResourceClaimTemplate gpus"),
    ],
)
def test_a_pod_that_waits_longer_than_its_bound_needs_a_person(
    pod: Manifest, bound: int, told: str
) -> None:
    reached, end = progress(DEPLOYMENT, once_complete()), NOW + bound * SECOND
    assert not given_up(reached, [pod], end - SECOND)
    assert given_up(reached, [pod], end)
    seconds = seconds_to_bound(reached, [pod], NOW)
    assert seconds is not None
    assert bound <= seconds <= bound + 1, "no event tells of it"
    assert seconds_to_bound(reached, [pod], end) is None
    updated = shortfall(reached, [pod], "1 of 2 engines ready", end)
    assert pod["metadata"]["name"] in updated.message
    assert told in updated.message
    assert "starting" not in updated.message


def test_an_engine_that_loads_or_serves_or_leaves_does_not_wait() -> None:
    reached, late = progress(DEPLOYMENT, once_complete()), NOW + timedelta(days=1)
    loads = waiting(UNREADY, containerStatuses=LOADS)
    (ready,) = pods(DEPLOYMENT, 1)
    leaves = waiting(NO_PLACE)
    leaves["metadata"]["deletionTimestamp"] = SINCE
    assert not given_up(reached, [loads, ready, leaves], late)


def test_pods_that_should_have_left_are_named_with_their_nodes() -> None:
    leaving = pods(DEPLOYMENT, 6)
    for pod in leaving:
        pod["metadata"]["deletionTimestamp"] = SINCE
        pod["spec"] = pod["spec"] | {"nodeName": "n0"}
    end = NOW + LEAVING_SECONDS * SECOND
    assert not not_leaving(leaving, end - SECOND), "kubelets take a moment"
    text = not_leaving(leaving, end)
    assert f"{leaving[0]['metadata']['name']} of node n0" in text
    assert "and 2 more" in text
    assert "kubectl delete node" in text
    assert not not_leaving(pods(DEPLOYMENT), end)


UNMOUNTED = {"type": "PodReadyToStartContainers", "status": "False"}


def test_a_pod_whose_volumes_are_not_mounted_is_named_without_a_guess_at_the_cause() -> None:
    pod = waiting(UNMOUNTED)
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    pod["spec"] = pod["spec"] | {"volumes": [claim]}
    reached, end = progress(DEPLOYMENT, once_complete()), NOW + MOUNT_SECONDS * SECOND
    seconds = seconds_to_bound(reached, [pod], NOW)
    assert seconds is not None
    assert MOUNT_SECONDS <= seconds <= MOUNT_SECONDS + 1, "no event tells of it"
    early = shortfall(reached, [pod], "1 of 2 engines ready", end - SECOND)
    assert early.reason == "Starting"
    told, name = shortfall(reached, [pod], "1 of 2 engines ready", end), pod["metadata"]["name"]
    assert told.reason == "VolumesNotMounted"
    assert told.message == (
        f"1 of 2 engines ready; the volumes of pod {name} are not mounted, or its network is not "
        f"there: `kubectl describe pod {name}`."
    )
    assert MOUNT_SECONDS >= 180, "attaching a disk takes minutes"
    mounted = waiting(UNMOUNTED | {"status": "True"})
    assert shortfall(reached, [mounted], "1 of 2", end).reason == "Starting"
    leaving = pod | {"metadata": pod["metadata"] | {"deletionTimestamp": SINCE}}
    assert shortfall(reached, [leaving], "1 of 2", end).reason == "Starting"
