"""The operator's HTTP endpoints: liveness, readiness and metrics.

`Health` and the exposition are passed in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

METRICS_TYPE: Final = "text/plain; version=0.0.4"
END_SECONDS: Final = 1.0
"""How long each port waits at the end for requests that are being answered."""


@dataclass
class Health:
    """What the probes answer. A standby counts as ready: it is ready to take over."""

    state: str = "starting"
    ready: Callable[[], bool] = lambda: False
    blocked: Callable[[], str] = lambda: ""
    """Why the operator cannot work, though it leads or stands by; empty when it can."""


@asynccontextmanager
async def listening(
    host: str, ports: tuple[int, int], health: Health, exposition: Callable[[], bytes]
) -> AsyncIterator[None]:
    """Serves both ports (health, metrics) on `host` inside the `async with` block."""
    health_port, metrics_port = ports
    apps = (_health_app(health), _metrics_app(exposition))
    runners = [  # probes are not logged
        web.AppRunner(app, access_log=None, shutdown_timeout=END_SECONDS) for app in apps
    ]
    try:
        for runner, port in zip(runners, (health_port, metrics_port), strict=True):
            await runner.setup()
            await web.TCPSite(runner, host, port).start()
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


def _health_app(health: Health) -> web.Application:
    async def live(_: web.Request) -> web.Response:
        return web.Response(text=health.state)

    async def ready(_: web.Request) -> web.Response:
        if reason := health.blocked():
            return web.Response(text=f"{health.state}: {reason}", status=503)
        return web.Response(text=health.state, status=200 if health.ready() else 503)

    app = web.Application()
    app.add_routes([web.get("/healthz", live), web.get("/readyz", ready)])
    return app


def _metrics_app(exposition: Callable[[], bytes]) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(), headers={"Content-Type": METRICS_TYPE})

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    return app
