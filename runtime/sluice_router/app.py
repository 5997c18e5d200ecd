"""The routes that clients see: a request's body is read and checked, then an engine's answer is
passed on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from aiohttp import web
from sluice_contract import http_errors
from sluice_contract.http_errors import COUNT_TOKENS_PATH
from sluice_contract.http_heads import BODY_SECONDS, ROUTING_KEY_HEADER
from sluice_contract.pages import VERSION_PATH, Page
from sluice_contract.version import VERSION

from sluice_router import edge
from sluice_router.accounting import Accounting, Guard, Handler
from sluice_router.attempts import Call, Reply
from sluice_router.byte_budget import Body, Budgets
from sluice_router.engines import Clock
from sluice_router.errors import (
    JSON_CONTENT_TYPE,
    BadRequestError,
    EngineRefusedError,
    RouterError,
    error_in,
)
from sluice_router.exchange import Exchange, exchange_of
from sluice_router.forward import Dispatcher, ResumingForwarder
from sluice_router.lifecycle import Lifecycle
from sluice_router.monitoring import health
from sluice_router.pick import affinity_of
from sluice_router.relay import Relay
from sluice_router.resume import PrivateCallSigner, Progress
from sluice_router.telemetry import COMPLETION_ROUTES, RouterSpans, Telemetry
from sluice_router.tenants import Uploads


@dataclass(frozen=True)
class ConfiguredParts:
    """Parts that only some configurations ask for; None where this one does not."""

    call_signer: PrivateCallSigner | None
    """Signer of private calls, where answers may be resumed."""
    guard: Guard
    """API keys, and web pages that may send requests."""
    spans: RouterSpans | None
    """Spans, where they are recorded."""
    uploads: Uploads | None
    """Uploads, where tenants share connections."""
    pages: Mapping[str, Page]
    """Path → web page for people."""


@dataclass(frozen=True)
class Parts:
    """Parts that the routes need."""

    dispatcher: Dispatcher
    budgets: Budgets
    lifecycle: Lifecycle
    telemetry: Telemetry
    clock: Clock
    configured: ConfiguredParts


def build_app(parts: Parts, max_body_bytes: int) -> web.Application:
    """The application; the routes in this list are all there are."""
    routes = Routes(parts)
    configured = parts.configured
    accounting = Accounting(
        parts.telemetry, parts.lifecycle, parts.clock, configured.guard, configured.spans
    )
    app = web.Application(client_max_size=max_body_bytes, middlewares=[accounting.middleware])
    app.on_response_prepare.append(accounting.finish_headers)
    app.add_routes(
        [
            *(web.post(route, routes.completion) for route in COMPLETION_ROUTES),
            web.post("/tokenize", routes.tokens),
            web.post("/detokenize", routes.tokens),
            web.get("/openapi.json", routes.models, allow_head=False),
            web.post(COUNT_TOKENS_PATH, routes.tokens),
            web.get("/v1/models", routes.models, allow_head=False),
            web.get("/v1/models/{name:.+}", routes.models, allow_head=False),
            web.get("/health", health),
            web.get(VERSION_PATH, version),
            *(web.get(path, _showing(page)) for path, page in configured.pages.items()),
        ]
    )
    return app


async def version(request: web.Request) -> web.Response:
    """The version of Sluice."""
    text = json.dumps({"version": VERSION})
    return web.Response(text=text, content_type=JSON_CONTENT_TYPE)


def _showing(page: Page) -> Handler:
    async def show(request: web.Request) -> web.Response:
        return web.Response(body=page.body, headers=page.headers)

    return show


class Routes:
    """The handlers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._forwarder = ResumingForwarder(parts.dispatcher, parts.telemetry)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """A request with a body: checked, then passed through."""
        body = Body(self._parts.budgets.bodies, exchange_of(request).tenant)
        try:
            return await self._forward(request, body)
        finally:
            body.release()

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The models, or one of them, as an engine names them; or an engine's document."""
        return await self._forward(request, None)

    async def tokens(self, request: web.Request) -> web.StreamResponse:
        """A text or its token ids, or how many these are, by the tokenizer of any engine."""
        body = Body(self._parts.budgets.bodies, exchange_of(request).tenant)
        try:
            return await self._forward(request, body, generates=False)
        finally:
            body.release()

    async def _forward(
        self, request: web.Request, body: Body | None, *, generates: bool = True
    ) -> web.StreamResponse:
        exchange = exchange_of(request)
        tenant = exchange.tenant
        relay = Relay(request, self._parts.budgets.bodies, tenant)
        head = Body(self._parts.budgets.bodies, tenant)
        try:
            head.hold(exchange.head_bytes)  # aiohttp keeps it until the end of the answer
            headers = edge.request_headers(request.headers, exchange.id, exchange.trace)
            async with self._parts.lifecycle.request() as limit:
                progress, model, affinity = None, None, None
                if body is not None:
                    with self._upload(request, tenant):
                        fields = await _read_body(request, body)
                    model = fields.model
                    if generates:
                        progress = self._progress(fields, body)
                        routing_key = headers.get(ROUTING_KEY_HEADER)
                        affinity = affinity_of(routing_key, body.content, tenant or "")
                method, path = request.method, request.rel_url.raw_path
                call = Call(
                    method, path, headers, body, progress, affinity, tenant, model, generates, limit
                )
                on_reply = partial(self._begun, request.path, exchange)
                with self._parts.lifecycle.served(tenant):
                    return await self._forwarder.run(call, relay, on_reply)
        except RouterError as error:
            exchange.failure = error.with_traceback(None)
            if isinstance(error, EngineRefusedError):
                exchange.refusal = error_in(error.body).text
            return await relay.fail(error)
        finally:
            head.release()

    def _upload(self, request: web.Request, tenant: str | None) -> AbstractContextManager[None]:
        """While its body is on its way, the request may be ended for another tenant's connection.
        The error is set before the connection is closed, so that it is logged as the cause."""
        uploads = self._parts.configured.uploads
        if uploads is None or tenant is None:
            return nullcontext()

        def end(error: RouterError) -> None:
            request.content.set_exception(error)
            if request.transport is not None:
                asyncio.get_running_loop().call_soon(request.transport.abort)

        return uploads.upload(tenant, end)

    def _progress(self, fields: edge.BodyFields, body: Body) -> Progress | None:
        """The progress of the answer, if it may be resumed."""
        signer = self._parts.configured.call_signer
        if signer is None:
            return None
        clock, since_seconds = self._parts.clock, self._parts.clock()
        return Progress(
            signer.draw_seed(),
            streams=fields.streams,
            charge=body.charge,
            waited_seconds=lambda: clock() - since_seconds,
        )

    def _begun(self, path: str, exchange: Exchange, reply: Reply) -> None:
        if exchange.engine is not None:
            exchange.resumed = True
        elif path in COMPLETION_ROUTES:
            seconds = self._parts.clock() - exchange.start_seconds
            self._parts.telemetry.first_byte(seconds, streams=reply.streams_events)
        exchange.engine = reply.target.name
        if reply.status >= HTTPStatus.BAD_REQUEST:
            exchange.refusal = error_in(reply.first).text


async def _read_body(request: web.Request, body: Body) -> edge.BodyFields:
    """Read and check the body.

    Raises:
        RouterError: it cannot be served, or not now.
    """
    if mistake := http_errors.wrong_encoding(request.headers.get("Content-Encoding")):
        raise BadRequestError(mistake)
    limit_bytes = request.client_max_size
    if (request.content_length or 0) > limit_bytes:
        raise BadRequestError(http_errors.body_too_large(limit_bytes))
    try:
        async with asyncio.timeout(BODY_SECONDS):
            whole = await body.read(request.content, limit_bytes)
    except TimeoutError:
        raise BadRequestError(http_errors.body_too_late(BODY_SECONDS)) from None
    if not whole:
        raise BadRequestError(http_errors.body_too_large(limit_bytes))
    return edge.check_body(body.content)
