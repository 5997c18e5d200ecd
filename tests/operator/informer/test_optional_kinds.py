"""Optional kinds: absent ones are left out, and what is installed later is noticed."""

from __future__ import annotations

import pytest
from sluice_operator.informer.optional_kinds import REFRESH_SECONDS, OptionalKinds
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import OPTIONAL_CHILDREN, POD_MONITOR
from sluice_operator.kube.transport import Request, Response

from tests.operator.virtual_time import FakeClock


class Server:
    """Has the kinds of the Prometheus operator, or not, or does not answer."""

    def __init__(self) -> None:
        self.has_monitors = False
        self.status = 200
        self.requests = 0

    async def send(self, request: Request) -> Response:
        self.requests += 1
        if request.path == "/apis":
            groups = [{"name": "monitoring.coreos.com"}] if self.has_monitors else []
            return Response(self.status, {"groups": groups})
        assert request.path == "/apis/monitoring.coreos.com/v1"
        return Response(200, {"resources": [{"name": "podmonitors"}]})


async def test_what_is_absent_is_left_out_and_said_once_until_it_is_installed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    server, clock = Server(), FakeClock()
    kinds = OptionalKinds(ApiClient(server, lambda verb, plural: None), clock)
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
