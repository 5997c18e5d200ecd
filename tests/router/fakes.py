"""Fake engines and a router to put in front of them, all on the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from multidict import CIMultiDictProxy
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_contract.config.router import (
    LoadFollowing,
    RouterConfig,
    RouterServer,
    Upstream,
)
from sluice_contract.wire.load import LoadReport
from sluice_router.serve import Ports, serve

from tests.figures import with_figures
from tests.patience import PATIENCE_SECONDS

Behaviour = Callable[["FakeEngine", web.Request], Awaitable[web.StreamResponse]]

FINGERPRINT = KvFingerprint(
    model="file:///m", page_size_tokens=16, kv_dtype="bfloat16", tensor_parallel_size=1
)
LOOPBACK: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "metricsPort": 0}
"""`server` in a router's file: free ports of this machine."""
EVENT = b'data: {"id":"c","object":"text_completion","choices":[{"index":0,"text":"%d"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def load_report(**changes: Any) -> LoadReport:
    """A report of an idle engine, with changes."""
    idle: dict[str, Any] = {
        "role": Role.MIXED,
        "epoch": "e1",
        "time_seconds": 0.0,
        "draining": False,
        "queued_requests": 0,
        "queued_tokens": 0,
        "running_requests": 0,
        "max_running_requests": 16,
        "max_queued_requests": 64,
        "kv_pages_total": 100,
        "kv_pages_free": 100,
        "kv_pages_evictable": 0,
        "page_size_tokens": 16,
        "queued_work_seconds": 0.0,
        "revision": "r1",
        "kv_fingerprint": FINGERPRINT,
    }
    return LoadReport(**with_figures(idle | changes))


@dataclass
class FakeEngine:
    """An engine that does as it is told and remembers what it was asked."""

    behave: Behaviour
    url: str = ""
    load: LoadReport = field(default_factory=load_report)
    calls: list[tuple[str, CIMultiDictProxy[str], bytes]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    blocked: asyncio.Event = field(default_factory=asyncio.Event)
    polled: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.path, request.headers, await request.read()))
        self.asked.set()
        try:
            return await self.behave(self, request)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted.set()
            raise

    async def report(self, request: web.Request) -> web.Response:
        self.polled.set()
        return web.Response(text=self.load.model_dump_json(by_alias=True))


@asynccontextmanager
async def running_engine(
    behave: Behaviour, drain_seconds: float = 0.1
) -> AsyncIterator[FakeEngine]:
    """A fake engine on a free port; what still runs at the end gets `drain_seconds`."""
    engine = FakeEngine(behave)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/load", engine.report)
    for path in ("/v1/{rest:.*}", "/tokenize", "/detokenize", "/openapi.json"):
        app.router.add_route("*", path, engine.answer)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=drain_seconds
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


@dataclass
class RunningRouter:
    """A router in this process."""

    url: str
    metrics_url: str
    stop: asyncio.Event
    task: asyncio.Task[None]


@asynccontextmanager
async def running_router(
    *urls: str,
    server: dict[str, Any] | None = None,
    upstream: dict[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[RunningRouter]:
    """A router for the engines at `urls`, ready to be asked. `more`: what else it is told; of
    pairs, so that these only decode."""
    config = router_config(*urls, server=server, upstream=upstream, **more)
    async with running_from(config, {}) as router:
        yield router


def router_config(
    *urls: str,
    server: dict[str, Any] | None = None,
    upstream: dict[str, Any] | None = None,
    **more: Any,
) -> RouterConfig:
    """A router's file, with times that suit tests.

    It shares its loop with its engines and clients: one that is starved for seconds would take its
    own delay for theirs, and give a connection up.
    """
    quick: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "metrics_port": 0,
        "lame_duck_seconds": 0,
        "drain_seconds": 0.2,
    }
    patient = {"connect_timeout_seconds": PATIENCE_SECONDS, "wait_for_engine_seconds": 0.1}
    return RouterConfig(
        engines=urls,
        **more,
        server=RouterServer(**quick | (server or {})),
        upstream=Upstream(**patient | (upstream or {})),
        load=LoadFollowing(interval_seconds=0.05),
    )


@asynccontextmanager
async def running_from(
    config: RouterConfig, environ: dict[str, str]
) -> AsyncIterator[RunningRouter]:
    """A router with this configuration."""
    stop = asyncio.Event()
    started: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(config, environ, stop, started))
    either: list[asyncio.Future[Any]] = [started, task]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        ports = started.result()
        http, metrics = (f"http://127.0.0.1:{port}" for port in (ports.http, ports.metrics))
        yield RunningRouter(http, metrics, stop, task)
    finally:
        stop.set()
        await task


async def answers_json(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """A short answer that is not streamed."""
    return web.json_response({"engine": engine.url}, headers={"X-Engine": "yes"})


async def streams(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Three events and the end."""
    response = await start_stream(request)
    for number in range(3):
        await response.write(EVENT % number)
    await response.write(DONE)
    return response


async def streams_when_let(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """One event; the rest once the gate is open."""
    response = await start_stream(request)
    await response.write(EVENT % 0)
    await engine.gate.wait()
    await response.write(EVENT % 1 + DONE)
    return response


async def hangs_in_stream(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """One event, and nothing more."""
    response = await start_stream(request)
    await response.write(EVENT % 0)
    await asyncio.Event().wait()
    return response


async def dies_in_stream(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """One event and half of another; then the connection breaks once the gate is open."""
    response = await start_stream(request)
    await response.write(EVENT % 0 + EVENT[:20])
    await engine.gate.wait()
    break_connection(request)
    return response


def ends_with_error(error: bytes) -> Behaviour:
    """A stream that ends with this error event after its first token."""

    async def behave(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        response = await start_stream(request)
        await response.write(EVENT % 0)
        await response.write(b'data: {"error": %s}\n\n' % error)
        return response

    return behave


async def dies_before_answer(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Takes the request and breaks the connection."""
    break_connection(request)
    return web.Response()


async def hangs(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
    """Never answers."""
    await engine.gate.wait()
    return web.Response()


def refuses(
    status: int, headers: Mapping[str, str] | None = None, code: str = "told_to"
) -> Behaviour:
    """Answers every request with that status and code."""

    async def behave(engine: FakeEngine, request: web.Request) -> web.StreamResponse:
        body = {"error": {"message": "told to", "type": "t", "param": None, "code": code}}
        return web.json_response(body, status=status, headers=headers)

    return behave


async def start_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


def break_connection(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
