"""Engines of a canary that end, or lose readiness, too often within a step."""

from __future__ import annotations

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.rollout.engine_ends import MAX_PODS, PodSeen, often_ended, pods_seen

from tests.operator.service.rollout.canary_world import pod

T1, T2, T3 = (f"2026-01-02T03:0{minute}:00Z" for minute in (1, 2, 3))


def text(*statuses: tuple[int, str], before: dict[str, PodSeen] | None = None) -> str:
    """What is found after one pod has had these restarts and times of readiness."""
    seen = before
    for restarts, ready in statuses:
        pods = [pod("b-1", restarts, ready)]
        seen = pods_seen(seen, pods)
    return often_ended(seen or {}, pods)


def ended(name: str, restarts: int, at: str, node: str, reason: str = "Error") -> Manifest:
    """A pod whose engine has ended last at a time."""
    item = pod(name, restarts, T1)
    item["spec"]["nodeName"] = node
    terminated = {"finishedAt": at, "reason": reason, "exitCode": 1}
    item["status"]["containerStatuses"][0]["lastState"] = {"terminated": terminated}
    return item


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (ended("b-2", 1, "2026-01-02T03:04:05Z", "n2"), "2 engines have ended 2 times"),
        (ended("b-2", 1, "2026-01-02T03:04:05Z", "n1"), ""),
        (ended("b-2", 1, "2026-01-02T03:05:00Z", "n1"), "2 engines have ended 2 times"),
        (ended("b-2", 1, "2026-01-02T04:04:00Z", "n2"), "2 engines have ended 2 times"),
        (ended("b-2", 1, "2026-01-02T04:05:00Z", "n2"), ""),
        (ended("b-2", 1, "2026-01-02T03:04:05Z", "n2", "Unknown"), ""),
        (ended("b-1", 2, "2026-01-02T03:30:00Z", "n1"), "pod b-1 has ended 2 times"),
        (ended("b-1", 2, "2026-01-02T05:30:00Z", "n1"), ""),
        (ended("b-1", 2, "2026-01-02T03:30:00Z", "n1", "Unknown"), ""),
    ],
)
def test_ends_by_one_reboot_or_hours_apart_are_accidents(second: Manifest, why: str) -> None:
    first = ended("b-1", 1, "2026-01-02T03:04:00Z", "n1")
    pods = [second] if second["metadata"]["name"] == "b-1" else [first, second]
    seen = pods_seen(pods_seen({}, [first]), pods)
    assert pods_seen(seen, pods) == seen, "each end counts once"
    assert often_ended(seen, pods) == why


def test_so_many_pods_are_recorded_that_an_annotation_holds_them() -> None:
    pods = [pod(f"b-{number:04}", ready=T1) for number in range(1000)]
    seen = pods_seen({}, pods[500:])
    assert len(seen) == MAX_PODS
    assert pods_seen(seen, pods) == seen, "those that are known stay"


@pytest.mark.parametrize(
    ("statuses", "why"),
    [
        ([(0, T1), (1, ""), (1, T2)], ""),
        ([(0, T1), (1, T2), (2, T3)], "pod b-1 has ended 2 times"),
        ([(0, T1), (0, ""), (0, T2), (0, "")], "pod b-1 has lost readiness 2 times"),
        ([(0, T1), (0, T2), (0, T3)], "pod b-1 has lost readiness 2 times"),
        ([(4, T1), (5, T2)], ""),
        ([(4, ""), (6, "")], "pod b-1 has ended 2 times"),
        ([(0, ""), (0, T1), (0, T1), (0, "")], ""),
    ],
)
def test_twice_is_often_and_what_was_before_the_step_does_not_count(
    statuses: list[tuple[int, str]], why: str
) -> None:
    assert text(*statuses) == why


def test_restarts_of_a_pod_that_came_within_the_step_count() -> None:
    assert text((2, ""), before={}) == "pod b-1 has ended 2 times"


def test_losses_of_readiness_further_apart_are_accidents() -> None:
    days = [f"2026-01-0{day}T03:00:00Z" for day in (1, 2, 3)]
    assert text(*((0, day) for day in days)) == ""
    assert text(*((0, day) for day in days), (0, "2026-01-03T03:10:00Z")) == (
        "pod b-1 has lost readiness 2 times"
    )


def test_a_broken_time_of_a_loss_is_none() -> None:
    seen = pods_seen({"b-1": PodSeen(0, 1, T1, "yesterday")}, [pod("b-1", ready=T2)])
    assert seen == {"b-1": PodSeen(0, 1, T2, T2)}


def test_other_containers_of_a_pod_do_not_count() -> None:
    before = pod("b-1", ready=T1)
    after = pod("b-1", ready=T1)
    after["status"]["containerStatuses"].append({"name": "istio-proxy", "restartCount": 2})
    assert often_ended(pods_seen(pods_seen({}, [before]), [after]), [after]) == ""


@pytest.mark.parametrize(
    ("engines", "ended", "why"),
    [
        (10, 1, ""),
        (10, 2, "2 engines have ended 2 times"),
        (20, 3, ""),
        (20, 4, "4 engines have ended 4 times"),
    ],
)
def test_ends_of_all_engines_of_a_revision_count_together(
    engines: int, ended: int, why: str
) -> None:
    pods = [pod(f"b-{number}", int(number < ended), T1) for number in range(engines)]
    assert often_ended(pods_seen({}, pods), pods) == why


def evicted(name: str) -> Manifest:
    item = pod(name)
    item["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "low on memory "}
    return item


def test_pods_that_are_evicted_for_memory_or_disk_count() -> None:
    pods = [evicted("b-1"), pod("b-2", ready=T1), evicted("b-3")]
    assert often_ended(pods_seen({}, pods), pods) == (
        "2 engines have ended 2 times (Evicted: low on memory)"
    )
    assert often_ended(pods_seen(None, pods), pods) == "", "they ended before the step"
    for item in pods:
        item["status"]["reason"] = "NodeShutdown"
    assert often_ended(pods_seen({}, pods), pods) == ""


def test_pods_that_leave_are_forgotten() -> None:
    leaving = pod("b-1", restarts=5)
    leaving["metadata"]["deletionTimestamp"] = T1
    seen = pods_seen({"b-1": PodSeen(0, 0, T1)}, [leaving])
    assert seen == {}
    assert often_ended(seen, [leaving]) == ""
