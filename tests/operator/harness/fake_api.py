"""An API server of a few lines: it serves one Lease, many InferenceServices, and nothing of them.

Every request about a single object hangs for ever, so that each connection that an operator opens
for its reconciles stays busy.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from sluice_operator.kube.kinds import INFERENCE_SERVICE, NODE, POD, SERVICE_CHILDREN, Kind

from tests.operator.harness.proxy import kubeconfig_of

KOPFS = (
    Kind("v1", "Namespace", "namespaces"),
    Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"),
)
"""Kinds that Kopf looks for before it watches anything."""
KINDS = (INFERENCE_SERVICE, *SERVICE_CHILDREN, POD, NODE, *KOPFS)
CLUSTER_WIDE = (NODE, *KOPFS)
GROUP_VERSION = re.compile("/apis/[^/]+/[^/]+")
"""Where it is asked which kinds are served."""


class HangingApi:
    """Lists `services` InferenceServices; answers for the Lease; hangs at all other objects."""

    def __init__(self, services: int) -> None:
        self.services = services
        self.hanging = 0
        self.renewals = 0
        self._lease: dict[str, Any] | None = None
        self._news = asyncio.Event()

    async def until_renewed(self, times: int, seconds: float) -> None:
        """Returns once the Lease was written `times` more times while requests hang."""
        async with asyncio.timeout(seconds):
            before = self.renewals
            while self.renewals < before + times:
                self._news.clear()
                await self._news.wait()

    async def until_hanging(self, requests: int, seconds: float) -> None:
        """Returns once so many requests hang."""
        async with asyncio.timeout(seconds):
            while self.hanging < requests:
                self._news.clear()
                await self._news.wait()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "/leases" in request.path:
            return await self._answer_lease(request)
        if "watch" in request.query:
            return await _silence(request)
        *_, last = request.path.split("/")
        kind = next((kind for kind in KINDS if kind.plural == last), None)
        if kind is not None and "fieldSelector" not in request.query:
            return web.json_response(self._list(kind))
        if (found := discovery(request.path)) is not None:
            return web.json_response(found)
        if GROUP_VERSION.fullmatch(request.path):
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        self.hanging += 1
        self._news.set()
        await asyncio.Event().wait()
        raise AssertionError

    def _list(self, kind: Kind) -> dict[str, Any]:
        count = self.services if kind == INFERENCE_SERVICE else 0
        items = [
            {"metadata": _metadata(n), "spec": {"model": {"uri": "dummy://qwen3-tiny"}}}
            for n in range(count)
        ]
        return {"kind": f"{kind.kind}List", "metadata": {"resourceVersion": "1"}, "items": items}

    async def _answer_lease(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            missing = {"code": 404, "reason": "NotFound"}
            return web.json_response(self._lease or missing, status=200 if self._lease else 404)
        self._lease = await request.json()
        self._lease["metadata"]["resourceVersion"] = str(self.renewals)
        self.renewals += 1
        self._news.set()
        return web.json_response(self._lease)


def _metadata(number: int) -> dict[str, Any]:
    return {
        "name": f"s{number}",
        "namespace": "default",
        "uid": f"u{number}",
        "resourceVersion": "1",
    }


async def _silence(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


def discovery(path: str) -> dict[str, Any] | None:
    if path == "/apis":
        return {"groups": [_group(version) for version in sorted(VERSIONS)]}
    if path == "/api":
        return {"versions": ["v1"]}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    resources = [
        {
            "name": kind.plural,
            "singularName": "",
            "kind": kind.kind,
            "namespaced": kind not in CLUSTER_WIDE,
            "verbs": VERBS,
        }
        for kind in KINDS
        if kind.api_version == version
    ]
    return {"resources": resources} if resources else None


VERBS = ["get", "list", "watch", "patch", "create", "delete", "update"]


VERSIONS = {kind.api_version for kind in KINDS if "/" in kind.api_version}


def _group(api_version: str) -> dict[str, Any]:
    version = {"groupVersion": api_version, "version": api_version.partition("/")[2]}
    name = api_version.partition("/")[0]
    return {"name": name, "versions": [version], "preferredVersion": version}


@asynccontextmanager
async def hanging_api(services: int, directory: Path) -> AsyncIterator[tuple[HangingApi, Path]]:
    """The server, and a kubeconfig that leads to it."""
    api = HangingApi(services)
    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", api.answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield api, kubeconfig_of(directory / "fake.kubeconfig", runner.addresses[0][1])
    finally:
        await runner.cleanup()
