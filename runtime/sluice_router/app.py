"""The router's HTTP routes: what clients, probes, Prometheus and the autoscaler see.

Handlers read the request, hand it on and return. Knows neither how engines are found nor how one
is picked.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from sluice_contract import http_errors

from sluice_router import edge
from sluice_router.accounting import ENGINE, FAILURE, ID, START, Accounting
from sluice_router.dispatch import Call, Dispatcher
from sluice_router.errors import JSON_CONTENT_TYPE, BadRequestError, RouterError
from sluice_router.fleet import Clock, Fleet
from sluice_router.lifecycle import Lifecycle
from sluice_router.relay import Relay
from sluice_router.report import conditions, service_load
from sluice_router.telemetry import CONTENT_TYPE, Telemetry

BODY_SECONDS: Final = 60.0
"""Longest time a client may take to send its body."""


@dataclass(frozen=True)
class Parts:
    """What the routes stand on."""

    fleet: Fleet
    dispatcher: Dispatcher
    lifecycle: Lifecycle
    telemetry: Telemetry
    clock: Clock


def build_app(parts: Parts, max_body_bytes: int) -> web.Application:
    """The application; the routes in this list are all there are."""
    door = FrontDoor(parts)
    accounting = Accounting(parts.telemetry, parts.lifecycle, parts.clock)
    app = web.Application(client_max_size=max_body_bytes, middlewares=[accounting.middleware])
    app.on_response_prepare.append(accounting.finish_headers)
    app.add_routes(
        [
            web.post("/v1/completions", door.completion),
            web.post("/v1/chat/completions", door.completion),
            web.get("/v1/models", door.models, allow_head=False),
            web.get("/v1/models/{name:.+}", door.models, allow_head=False),
            web.get("/health", door.health),
            web.get("/ready", door.ready),
            web.get("/load", door.load, allow_head=False),
            web.get("/metrics", door.metrics, allow_head=False),
        ]
    )
    return app


class FrontDoor:
    """The handlers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """An OpenAI completion: checked, then passed through."""
        body = await _read_body(request)
        edge.check_body(body)
        return await self._forward(request, body)

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The models, or one of them, as an engine names them."""
        return await self._forward(request, None)

    async def health(self, request: web.Request) -> web.Response:
        """The process is alive."""
        return _json({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """Whether the cluster may send requests here: also with no engines, but not draining."""
        fleet, draining = self._parts.fleet, self._parts.lifecycle.draining
        reason = "Draining" if draining else "Ready" if fleet.discovered else "NotDiscovered"
        body = {"ready": reason == "Ready", "engines": len(fleet.engines()), "reason": reason}
        return _json(body, 200 if reason == "Ready" else 503)

    async def load(self, request: web.Request) -> web.Response:
        """The service's load: one summary for the autoscaler."""
        summary = service_load(
            self._parts.fleet,
            self._parts.clock(),
            draining=self._parts.lifecycle.draining,
            waiting=self._parts.dispatcher.waiting,
        )
        text = summary.model_dump_json(by_alias=True, exclude_none=True)
        return web.Response(text=text, content_type=JSON_CONTENT_TYPE)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus' exposition."""
        states = conditions(self._parts.fleet, self._parts.clock())
        text = self._parts.telemetry.render(states, self._parts.lifecycle.inflight)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def _forward(self, request: web.Request, body: bytes | None) -> web.StreamResponse:
        headers = edge.request_headers(request.headers, request[ID])
        call = Call(request.method, request.rel_url.raw_path, headers, body)
        relay = Relay(request)
        try:
            async with self._parts.lifecycle.request(), self._parts.dispatcher.open(call) as reply:
                request[ENGINE] = reply.engine.endpoint.name
                self._parts.telemetry.first_byte(self._parts.clock() - request[START])
                return await relay.run(reply)
        except RouterError as error:
            request[FAILURE] = error
            return await relay.fail(error)


async def _read_body(request: web.Request) -> bytes:
    if mistake := http_errors.wrong_encoding(request.headers.get("Content-Encoding")):
        raise BadRequestError(mistake)
    too_large = BadRequestError(http_errors.body_too_large(request.client_max_size))
    if (request.content_length or 0) > request.client_max_size:
        raise too_large
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except TimeoutError:
        raise BadRequestError(http_errors.body_too_late(BODY_SECONDS)) from None


def _json(body: dict[str, object], status: int = 200) -> web.Response:
    return web.Response(status=status, text=json.dumps(body), content_type=JSON_CONTENT_TYPE)
