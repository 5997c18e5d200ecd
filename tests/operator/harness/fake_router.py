"""A router's monitoring port, at an address of its own, that says what a test wants."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from sluice_contract.ports import ROUTER_METRICS
from sluice_contract.service_load import ServiceLoad

_numbers = itertools.count(1)


class FakeRouter:
    """Answers `GET /load` with `load`; with 503 while it is None."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.load: ServiceLoad | None = None
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.load is None:
            return web.Response(status=503)
        text = self.load.model_dump_json(by_alias=True, exclude_none=True)
        return web.Response(text=text, content_type="application/json")


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
        await runner.cleanup()
