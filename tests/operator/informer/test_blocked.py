"""What cannot be listed or watched is told once it has lasted, and no longer when it works."""

from __future__ import annotations

import pytest
from sluice_operator.informer.blocked import PATIENCE_SECONDS, Access, BlockedKinds
from sluice_operator.kube.errors import ApiError, OperatorError, UnavailableError
from sluice_operator.kube.kinds import DEPLOYMENT, POD

from tests.operator.virtual_time import FakeClock

PODS = Access("list", POD, None)
DEPLOYMENTS = Access("watch", DEPLOYMENT, "x")
FORBIDDEN = ApiError("GET /a", 403, "Forbidden", "no")
AWAY = UnavailableError("GET /a", "no answer")


@pytest.mark.parametrize(
    ("access", "error", "told"),
    [
        (PODS, FORBIDDEN, "no right to list pods in all namespaces"),
        (DEPLOYMENTS, FORBIDDEN, "no right to watch deployments.apps in namespace x"),
        (PODS, AWAY, "cannot list pods in all namespaces: GET /a: no answer"),
    ],
)
def test_what_lasts_is_told_by_its_kind_and_right_and_logged_once(
    access: Access, error: OperatorError, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    clock = FakeClock()
    blocked = BlockedKinds(clock)
    for elapsed in (0.0, 1.0, PATIENCE_SECONDS - 0.1):
        clock.elapsed_seconds = elapsed
        blocked.failed(access, error)
        assert (blocked.reason(), blocked.now()) == ("", ())
    for _ in range(3):
        clock.elapsed_seconds += 1.0
        blocked.failed(access, error)
        assert (blocked.reason(), blocked.now()) == (told, (access,))
    assert len(caplog.records) == 1


def test_a_success_ends_it_and_the_next_failure_is_given_time_again() -> None:
    clock = FakeClock()
    blocked = BlockedKinds(clock)
    for access in (PODS, DEPLOYMENTS):
        blocked.failed(access, FORBIDDEN)
    clock.elapsed_seconds = PATIENCE_SECONDS
    for access in (PODS, DEPLOYMENTS):
        blocked.failed(access, FORBIDDEN)
    blocked.succeeded(PODS)
    blocked.failed(PODS, FORBIDDEN)
    assert blocked.now() == (DEPLOYMENTS,)
