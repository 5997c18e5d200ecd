"""The port for metrics: whoever may scrape can neither generate, flush nor abort."""

from __future__ import annotations

import httpx
import pytest
from sluice_contract.base import ConfigError
from sluice_contract.config.engine import parse_engine_config
from sluice_runtime.server.app import make_app, make_metrics_app, routes_of
from starlette.types import ASGIApp

from tests.runtime.server.conftest import MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

READ = ("/metrics", "/load", "/health", "/ready")


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")


async def test_it_answers_what_is_read_and_nothing_else(server: Server) -> None:
    async with client_of(make_metrics_app(server.service)) as http:
        assert [(await http.get(path)).status_code for path in READ] == [200] * 4
        for path, methods in routes_of(server.service).openapi()["paths"].items():
            if path not in READ:
                for method in methods:
                    body = {"model": MODEL, "prompt": "a"}
                    response = await http.request(method, path, json=body)
                    assert response.status_code == 404, path
        assert (await http.get("/openapi.json")).status_code == 404
    assert server.engine.heard == []


async def test_metrics_leave_the_other_port_which_still_tells_the_load(server: Server) -> None:
    async with client_of(make_app(server.service, with_metrics=False)) as http:
        assert (await http.get("/metrics")).status_code == 404
        assert (await http.get("/load")).status_code == 200


async def test_the_two_ports_differ() -> None:
    with pytest.raises(ConfigError, match="metricsPort: 8000 is port; allowed: another"):
        parse_engine_config('{"model": {"uri": "dummy://a"}, "server": {"metricsPort": 8000}}')
