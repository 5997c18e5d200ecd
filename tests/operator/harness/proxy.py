"""A proxy between an operator and the API server, which sees every request and can spoil it.

It adds the credentials, so the operator talks plain HTTP to it. Watches are passed on line by
line.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from tests.operator.harness.cluster import unlimited
from tests.patience import PATIENCE_SECONDS

Spoil = Callable[["Seen"], web.Response | None]
"""Called before a request is passed on; an answer of its own keeps it from the API server."""
HEADERS = ("Content-Type", "Accept", "User-Agent")


@dataclass(frozen=True)
class Seen:
    """One request of the operator's."""

    method: str
    path: str
    query: dict[str, str]
    accept: str

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_write(self) -> bool:
        return self.method != "GET" and "/leases" not in self.path

    @property
    def is_resync(self) -> bool:
        return self.method == "GET" and "PartialObjectMetadata" in self.accept

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Proxy:
    """What it has seen, and what it does about the next request."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    spoil: Spoil = lambda seen: None
    after: Callable[[Seen], None] = lambda seen: None
    """Called when the API server has answered, and before the operator hears of it."""
    lines: Callable[[Seen, bytes], bytes] = lambda seen, line: line
    """Rewrites a line of a watch."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, seen: Seen) -> None:
        self.seen.append(seen)
        self._news.set()

    async def until(
        self, condition: Callable[[list[Seen]], Any], seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Returns once `condition` holds for everything seen so far."""
        async with asyncio.timeout(seconds):
            while not condition(self.seen):
                self._news.clear()
                await self._news.wait()

    def writes(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.is_write]


def status(code: int, reason: str, **headers: str) -> web.Response:
    """An error answer as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": "x"}
    return web.json_response(body, status=code, headers=headers)


@asynccontextmanager
async def proxying(kubeconfig: Path, directory: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    """A proxy to the API server of `kubeconfig`, and a kubeconfig that leads to the proxy."""
    proxy = Proxy()
    server, opened = await unlimited(kubeconfig)
    async with opened as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            return await _pass_on(proxy, session, server, request)

        app = web.Application(client_max_size=2**24)
        app.add_routes([web.route("*", "/{path:.*}", handle)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        try:
            await web.SockSite(runner, listener).start()
            proxy.port = listener.getsockname()[1]
            yield proxy, kubeconfig_of(directory / "proxy.kubeconfig", proxy.port)
        finally:
            # asyncio leaks a connection that it has accepted when the server closes.
            asyncio.get_running_loop().remove_reader(listener)
            await asyncio.sleep(0)
            await runner.cleanup()


async def _pass_on(
    proxy: Proxy, session: aiohttp.ClientSession, server: str, request: web.Request
) -> web.StreamResponse:
    accept = request.headers.get("Accept", "")
    seen = Seen(request.method, request.path, dict(request.query), accept)
    proxy.note(seen)
    if (spoiled := proxy.spoil(seen)) is not None:
        return spoiled
    headers = {name: request.headers[name] for name in HEADERS if name in request.headers}
    url, body = server + request.path_qs, await request.read() or None
    try:
        async with session.request(request.method, url, data=body, headers=headers) as answer:
            if seen.is_watch and answer.status == 200:
                return await _stream(proxy, seen, request, answer)
            content = await answer.read()
            proxy.after(seen)
            kind = answer.headers["Content-Type"]
            return web.Response(status=answer.status, body=content, headers={"Content-Type": kind})
    except aiohttp.ClientError:
        # One side has gone: so does the other.
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=502)


async def _stream(
    proxy: Proxy, seen: Seen, request: web.Request, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    async for line in answer.content:
        await response.write(proxy.lines(seen, line))
    return response


def watch_error(code: int) -> bytes:
    """A line that ends a watch."""
    error = {"kind": "Status", "code": code, "message": "too old" if code == 410 else "broken"}
    return json.dumps({"type": "ERROR", "object": error}).encode() + b"\n"


def kubeconfig_of(path: Path, port: int) -> Path:
    """A kubeconfig at `path` that leads to a plain HTTP server on this machine."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
    }
    path.write_text(yaml.safe_dump(config))
    return path
