"""A fake API server for EndpointSlices: list, watch, bookmarks, 410, outages, silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"

Slice = dict[str, Any]


def endpoint_slice(
    name: str, *pods: str | tuple[str, dict[str, bool]], role: str = "mixed", port: int = 8000
) -> Slice:
    """A slice of the Service chat-ROLE; an endpoint is a pod's name, or a name and conditions."""
    entries = []
    for number, pod in enumerate(pods):
        pod_name, conditions = (pod, {"ready": True}) if isinstance(pod, str) else pod
        entries.append(
            {
                "addresses": [f"10.0.0.{number + 1}"],
                "conditions": conditions,
                "targetRef": {"kind": "Pod", "name": pod_name},
            }
        )
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": f"chat-{role}"}},
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": port}],
        "endpoints": entries,
    }


@dataclass
class FakeKube:
    """Objects, versions and open watches."""

    url: str = ""
    slices: dict[str, Slice] = field(default_factory=dict)
    version: int = 10
    lists: int = 0
    watched_from: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    queries: list[dict[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    refuse: int | None = None
    """The status that every new call is answered with."""
    retry_after: str = ""
    """The refusals' header, if any."""
    ending: bool = False
    """Every watch ends when it has told what happened before."""
    oldest: int = 0
    """Watches from before this version are answered 410."""
    history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    watches: set[asyncio.Queue[dict[str, Any] | None]] = field(default_factory=set)

    def put(self, piece: Slice, kind: str = "MODIFIED") -> None:
        """Create or change a slice, and tell every watch."""
        self.slices[piece["metadata"]["name"]] = piece
        self._tell(kind, piece)

    def delete(self, name: str) -> None:
        """Delete a slice, and tell every watch."""
        self._tell("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        """Move the version on without a change."""
        self._tell("BOOKMARK", {"metadata": {}})

    def error(self, code: int) -> None:
        """Send an ERROR event on every watch."""
        for queue in self.watches:
            queue.put_nowait({"type": "ERROR", "object": {"kind": "Status", "code": code}})

    def end_watches(self) -> None:
        """End every watch, as the API server does after timeoutSeconds."""
        for queue in self.watches:
            queue.put_nowait(None)

    def _tell(self, kind: str, piece: Slice) -> None:
        self.version += 1
        stamped = piece | {"metadata": piece["metadata"] | {"resourceVersion": str(self.version)}}
        event = {"type": kind, "object": stamped}
        self.history.append((self.version, event))
        for queue in self.watches:
            queue.put_nowait(event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.refuse is not None:
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            status = {"code": self.refuse, "reason": "Told"}
            return web.json_response(status, status=self.refuse, headers=headers)
        if "watch" not in request.query:
            self.lists += 1
            listing = {
                "metadata": {"resourceVersion": str(self.version)},
                "items": list(self.slices.values()),
            }
            return web.json_response(listing)
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        self.watched_from.put_nowait(version)
        if version < self.oldest:
            return web.json_response({"code": 410, "reason": "Expired"}, status=410)
        response = web.StreamResponse()
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for happened, event in self.history:
            if happened > version:
                queue.put_nowait(event)
        if self.ending:
            queue.put_nowait(None)
        self.watches.add(queue)
        try:
            await response.prepare(request)
            while (sent := await queue.get()) is not None:
                await response.write(json.dumps(sent).encode() + b"\n")
        finally:
            self.watches.discard(queue)
        return response


@asynccontextmanager
async def running_kube() -> AsyncIterator[FakeKube]:
    """A fake API server on a free port."""
    kube = FakeKube()
    app = web.Application()
    app.router.add_get(PATH, kube.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kube.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield kube
    finally:
        await runner.cleanup()
