"""A server that accepts a watch and then brings nothing, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from sluice_operator.informer.blocked import BlockedKinds
from sluice_operator.informer.reflector import Reflector, Scope, Source
from sluice_operator.informer.store import Objects
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection, Request
from sluice_operator.kube.errors import SilentError
from sluice_operator.kube.kinds import SERVICE

from tests.operator.harness.cluster import plain_log_in
from tests.operator.virtual_time import FakeClock
from tests.patience import PATIENCE_SECONDS

SILENCE_SECONDS = 0.05
BOOKMARK = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}\n'


class Server:
    """Lists nothing at version 7; tells each watch one thing, or nothing, and keeps it open."""

    def __init__(self, first: bytes) -> None:
        self.first = first
        self.asked: list[str] = []
        self.news = asyncio.Semaphore(0)
        self.over = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        watch = "watch" in request.query
        self.asked.append("watch" if watch else "list")
        self.news.release()
        if not watch:
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.first)
        await self.over.wait()
        return response


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Connection]:
    """A transport to `server` on loopback, which loses patience early."""
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", server.answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    transport = Connection(
        5.0, plain_log_in(f"http://{host}:{port}"), silence_seconds=SILENCE_SECONDS
    )
    try:
        yield transport
    finally:
        server.over.set()
        await transport.aclose()
        await runner.cleanup()


async def test_a_silent_watch_is_begun_anew_from_a_listing() -> None:
    server = Server(b"")
    async with connected(server) as transport, asyncio.timeout(PATIENCE_SECONDS):
        clock, turns = FakeClock(), asyncio.Semaphore(1)
        client = ApiClient(transport, lambda verb, plural: None)
        source = Source(client, transport, clock, lambda: 0.0, turns, BlockedKinds(clock))
        reflector = Reflector(source, Scope(None), Objects(SERVICE), lambda kind, item: None)
        task = asyncio.create_task(reflector.run())
        for _ in range(6):
            await server.news.acquire()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert server.asked[:6] == ["list", "watch"] * 3


async def test_silence_after_an_event_ends_a_watch_too() -> None:
    async with connected(Server(BOOKMARK)) as transport, asyncio.timeout(PATIENCE_SECONDS):
        lines = transport.lines(Request("GET", "/api/v1/services", {"watch": "true"}))
        assert await anext(lines) == BOOKMARK
        with pytest.raises(SilentError, match=r"services: nothing for 0\.05 seconds"):
            await anext(lines)
