"""Optional kinds: those that are absent or may not be listed are left out, and what is installed or
allowed later is noticed."""

from __future__ import annotations

import pytest
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.kinds import OPTIONAL_CHILDREN, POD_MONITOR
from sluice_operator.probes.optional_kinds import REFRESH_SECONDS, OptionalKinds

from tests.operator.virtual_time import FakeClock


class Server:
    """Has the kinds of the Prometheus operator, or not, or does not answer."""

    def __init__(self) -> None:
        self.has_monitors = False
        self.forbidden: set[str] = set()
        """Namespaces in which podmonitors may not be listed."""
        self.status = 200
        self.requests = 0

    async def send(self, request: Request) -> Response:
        self.requests += 1
        if request.path == "/apis":
            groups = [{"name": "monitoring.coreos.com"}] if self.has_monitors else []
            return Response(self.status, {"groups": groups})
        if request.path == "/apis/monitoring.coreos.com/v1":
            return Response(200, {"resources": [{"name": "podmonitors"}]})
        namespace = request.path.split("/")[-2]
        assert request.path.endswith(f"/namespaces/{namespace}/podmonitors")
        assert request.query == {"limit": "1"}, "no more than it takes to know"
        return Response(403 if namespace in self.forbidden else 200, {"items": []})


async def test_what_is_absent_is_left_out_and_said_once_until_it_is_installed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    server, clock = Server(), FakeClock()
    kinds = OptionalKinds(ApiClient(server, lambda verb, plural: None), clock, ("x",))
    for _ in range(5):
        assert await kinds.served() == ()
    assert server.requests == len(OPTIONAL_CHILDREN)
    for _ in range(3):
        clock.elapsed_seconds += REFRESH_SECONDS
        assert await kinds.served() == ()
    assert caplog.text.count("left out") == len(OPTIONAL_CHILDREN)
    server.has_monitors = True
    clock.elapsed_seconds += REFRESH_SECONDS
    assert await kinds.served() == (POD_MONITOR,)
    assert caplog.text.count("optional kind used") == 1
    server.status = 503
    clock.elapsed_seconds += REFRESH_SECONDS
    assert await kinds.served() == (POD_MONITOR,), "as it was"


async def test_what_may_not_be_listed_everywhere_is_as_good_as_absent_and_is_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    server, clock = Server(), FakeClock()
    kinds = OptionalKinds(ApiClient(server, lambda verb, plural: None), clock, ("x", "y"))
    server.has_monitors, server.forbidden = True, {"y"}
    for _ in range(3):
        assert await kinds.served() == ()
        clock.elapsed_seconds += REFRESH_SECONDS
    assert caplog.text.count("left out") == len(OPTIONAL_CHILDREN)
    server.forbidden.clear()
    assert await kinds.served() == (POD_MONITOR,)
    server.forbidden = {"x"}
    clock.elapsed_seconds += REFRESH_SECONDS
    assert await kinds.served() == ()
    assert caplog.text.count("left out") == len(OPTIONAL_CHILDREN) + 1
