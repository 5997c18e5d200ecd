"""Nodes: read seldom, and missed without harm."""

from __future__ import annotations

import pytest
from sluice_operator.client import ApiClient
from sluice_operator.errors import ApiError
from sluice_operator.observe import NODES_SECONDS, Nodes
from sluice_operator.transport import Request, Response

from tests.operator.virtual_time import FakeClock


class Server:
    """Answers with as many nodes as it is told, or with a refusal."""

    def __init__(self) -> None:
        self.requests = 0
        self.status = 200
        self.nodes = 1

    async def send(self, request: Request) -> Response:
        self.requests += 1
        items = [{"metadata": {"name": f"node-{number}"}} for number in range(self.nodes)]
        return Response(self.status, {"metadata": {}, "items": items})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def nodes(server: Server, clock: FakeClock) -> Nodes:
    return Nodes(ApiClient(server, lambda verb, plural: None), clock)


async def test_they_are_read_once_a_minute(server: Server, clock: FakeClock, nodes: Nodes) -> None:
    for _ in range(3):
        assert len(await nodes.list() or ()) == 1
    server.nodes = 2
    clock.elapsed_seconds += NODES_SECONDS - 1
    assert len(await nodes.list() or ()) == 1
    clock.elapsed_seconds += 1
    assert len(await nodes.list() or ()) == 2
    assert server.requests == 2


async def test_without_the_right_to_read_them_there_are_none(server: Server, nodes: Nodes) -> None:
    server.status = 403
    assert await nodes.list() is None


async def test_a_passing_refusal_forgets_nothing(
    server: Server, clock: FakeClock, nodes: Nodes
) -> None:
    await nodes.list()
    server.status = 403
    clock.elapsed_seconds += NODES_SECONDS
    assert len(await nodes.list() or ()) == 1


async def test_another_error_is_an_error(server: Server, nodes: Nodes) -> None:
    server.status = 400
    with pytest.raises(ApiError):
        await nodes.list()
