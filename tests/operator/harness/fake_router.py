"""A router's monitoring port, at an address of its own, that says what a test wants."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web
from sluice_contract.cluster.ports import ROUTER_METRICS
from sluice_contract.wire.load import ServiceLoad

_numbers = itertools.count(1)


class FakeRouter:
    """Answers `GET /load` with `load`; with 503 while it is None. What waits for a request is
    answered at once where the load has some, else when another load is set."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.status = 200
        self._load: ServiceLoad | None = None
        self._asked, self._waiting, self._changed = (asyncio.Event() for _ in range(3))

    @property
    def load(self) -> ServiceLoad | None:
        """What the router says."""
        return self._load

    @load.setter
    def load(self, load: ServiceLoad | None) -> None:
        self._load = load
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_asked(self) -> None:
        """Returns once somebody has asked for the load."""
        await self._asked.wait()

    async def until_waiting(self) -> None:
        """Returns once somebody waits until a request comes."""
        await self._waiting.wait()

    async def answer(self, request: web.Request) -> web.Response:
        self._asked.set()
        if self._load is not None and not _is_busy(self._load) and "wait" in request.query:
            self._waiting.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(float(request.query["wait"])):
                    await self._changed.wait()
        if self._load is None:
            return web.Response(status=503)
        text = self._load.model_dump_json(by_alias=True, exclude_none=True)
        return web.Response(text=text, content_type="application/json", status=self.status)


def _is_busy(load: ServiceLoad) -> bool:
    reports = (engine.report for engine in load.engines if engine.report is not None)
    return load.waiting_requests > 0 or any(report.figures.requests > 0 for report in reports)


@asynccontextmanager
async def fake_router() -> AsyncIterator[FakeRouter]:
    """One that listens inside the block."""
    number, process = next(_numbers), os.getpid()
    router = FakeRouter(f"127.{2 + number % 250}.{process // 256 % 256}.{process % 256}")
    app = web.Application()
    app.add_routes([web.get("/load", router.answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, router.address, ROUTER_METRICS).start()
        yield router
    finally:
        router.load = None
        await runner.cleanup()
