"""Whether pods may mount images: asked by a Deployment that is not made."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.probes.image_volumes import REFRESH_SECONDS, ImageVolumes

from tests.operator.virtual_time import FakeClock

KEPT = {"name": "image", "image": {"reference": "probe", "pullPolicy": "Always"}}
DROPPED: dict[str, Any] = {"name": "image", "emptyDir": {}}
"""By a server that does not know the field; a volume without a source is an emptyDir."""


class Server:
    """Keeps the volume, drops it, or answers otherwise."""

    def __init__(self) -> None:
        self.status = 201
        self.volume = DROPPED
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        if self.status != 201:
            return Response(self.status, {"message": "no"})
        return Response(201, {"spec": {"template": {"spec": {"volumes": [self.volume]}}}})


async def test_the_server_is_asked_to_write_nothing_and_seldom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, clock = Server(), FakeClock()
    volumes = ImageVolumes(ApiClient(server, lambda verb, plural: None), clock, "sluice-system")
    assert not await volumes.accepted()
    assert not await volumes.accepted()
    (request,) = server.requests
    assert request.method == "POST"
    assert request.path == "/apis/apps/v1/namespaces/sluice-system/deployments"
    assert request.query["dryRun"] == "All"
    server.volume = KEPT
    clock.elapsed_seconds += REFRESH_SECONDS
    assert await volumes.accepted()
    for status in (403, 503):
        server.status = status
        clock.elapsed_seconds += REFRESH_SECONDS
        assert await volumes.accepted(), "as it was"
    assert caplog.text.count("image volumes are not known") == 2
    server.status = 422
    clock.elapsed_seconds += REFRESH_SECONDS
    assert not await volumes.accepted()
