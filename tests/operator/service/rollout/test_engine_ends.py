"""An engine of a canary that ends, or loses readiness, twice within a step."""

from __future__ import annotations

import pytest
from sluice_operator.service.rollout.engine_ends import PodSeen, often_ended, pods_seen

from tests.operator.service.rollout.canary_world import pod

T1, T2, T3 = (f"2026-01-02T03:0{minute}:00Z" for minute in (1, 2, 3))


def text(*statuses: tuple[int, str], before: dict[str, PodSeen] | None = None) -> str:
    """What is found after one pod has had these restarts and times of readiness."""
    seen = before
    for restarts, ready in statuses:
        pods = [pod("b-1", restarts, ready)]
        seen = pods_seen(seen, pods)
    return often_ended(seen or {}, pods)


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


def test_pods_that_leave_are_forgotten() -> None:
    leaving = pod("b-1", restarts=5)
    leaving["metadata"]["deletionTimestamp"] = T1
    seen = pods_seen({"b-1": PodSeen(0, 0, T1)}, [leaving])
    assert seen == {}
    assert often_ended(seen, [leaving]) == ""
