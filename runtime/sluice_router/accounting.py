"""Around every request: gives it an id, checks its head and its API key, makes an answer of any
error, counts it and logs it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiohttp import web
from sluice_contract import http_errors
from sluice_contract.http_heads import REQUEST_ID_HEADER
from sluice_contract.pages import PAGES, VERSION_PATH
from sluice_contract.wire.spans import TRACEPARENT_HEADER, Attributes, AttributeValue, trace_id

from sluice_router import edge
from sluice_router.auth import API_KEY_HEADER, ApiKeys
from sluice_router.edge import CorsHeaders
from sluice_router.engines import Clock
from sluice_router.errors import BadRequestError, InternalError, RouterError
from sluice_router.exchange import Exchange, exchange_of
from sluice_router.lifecycle import Lifecycle
from sluice_router.relay import error_response
from sluice_router.telemetry import (
    COMPLETION_ROUTES,
    Outcome,
    RouterSpans,
    Telemetry,
    fate_of,
)

logger = logging.getLogger("sluice.router")

CLIENT_GONE: Final = 499
"""The code of a request whose client did not stay for the answer."""
UNKNOWN_ROUTE: Final = "unknown"
PROBES: Final = frozenset({"/health"})
"""Routes that are not counted as requests."""
PUBLIC: Final = PROBES | {VERSION_PATH, *PAGES}
"""Routes that need no API key: they tell no more than the version of Sluice."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard(NamedTuple):
    """Checks that a request must pass before its route; each where it is configured."""

    keys: ApiKeys | None = None
    """API keys; without one of them, every route that is not PUBLIC is answered 401."""
    cors: CorsHeaders | None = None
    """CORS headers, where web pages may send requests."""


class Accounting:
    """The application's only middleware."""

    def __init__(
        self,
        telemetry: Telemetry,
        lifecycle: Lifecycle,
        clock: Clock,
        guard: Guard,
        spans: RouterSpans | None = None,
    ) -> None:
        self._spans = spans
        self._keys, self._cors = guard
        self._telemetry = telemetry
        self._lifecycle = lifecycle
        self._clock = clock

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Run the handler; the request is answered, counted and logged, also after an error."""
        exchange = exchange_of(request)
        exchange.start_seconds = start = self._clock()
        exchange.id = edge.request_id(request.headers.get(REQUEST_ID_HEADER))
        traceparent = request.headers.get(TRACEPARENT_HEADER)
        traced = self._spans.request(traceparent) if self._spans else None
        exchange.trace = traced.own if traced else edge.traceparent(traceparent)
        status = CLIENT_GONE
        asks_completion = request.method == "POST" and _route(request) in COMPLETION_ROUTES
        if asks_completion:
            self._telemetry.completion_began()
        try:
            response = await self._answer(request, exchange, handler)
            status = response.status
            return response
        finally:
            seconds = self._clock() - start
            route = _route(request)
            outcome = _outcome(request, exchange.failure, status)
            if asks_completion:
                failure = exchange.failure
                error_status = failure.status if failure is not None else None
                fate = fate_of(status, outcome, error_status, resumed=exchange.resumed)
                self._telemetry.completion_ended(fate)
            if route not in PROBES:
                self._telemetry.request(route, status, outcome, seconds)
                # A client without a key does not decide what is recorded.
                is_known = self._keys is None or exchange.tenant is not None
                if self._spans is not None and traced is not None and is_known:
                    attributes, error = _span_attributes(
                        request.method, exchange, route, status, outcome
                    )
                    self._spans.end_request(traced, start, attributes, error)
            _log(request.method, exchange, route, status, outcome, seconds)

    async def _answer(
        self, request: web.Request, exchange: Exchange, handler: Handler
    ) -> web.StreamResponse:
        try:
            edge.check_head(request.raw_path, request.raw_headers)
            if self._cors is not None and (answer := self._cors.preflight(request)) is not None:
                return answer
            if self._keys is not None and _route(request) not in PUBLIC:
                exchange.tenant = self._keys.tenant(
                    request.headers.get("Authorization"), request.headers.get(API_KEY_HEADER)
                )
            return await handler(request)
        except RouterError as error:
            exchange.failure = error.with_traceback(None)
            return error_response(error, request.path)
        except web.HTTPException as error:
            refusal = error_response(_from_http(request, error), request.path)
            if "Allow" in error.headers:
                refusal.headers["Allow"] = error.headers["Allow"]
            return refusal
        except (ConnectionError, TimeoutError):
            raise  # the client left, or does not read
        except Exception:
            logger.exception("request %s: unexpected error", exchange.id)
            return error_response(InternalError(), request.path)

    async def finish_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Headers of every answer."""
        # aiohttp answers an expectation that it does not know (417) before the middleware.
        response.headers[REQUEST_ID_HEADER] = exchange_of(request).id or edge.request_id(None)
        response.headers.pop("Server", None)
        if self._cors is not None:
            self._cors.add_headers(request.headers, response.headers)
        if self._lifecycle.draining:
            # Only with an answer that says so: the client may already have sent its next request on
            # a connection that the last answer kept. That request is answered, and says so, too.
            response.force_close()
            response.headers["Connection"] = "close"


def _from_http(request: web.Request, error: web.HTTPException) -> BadRequestError:
    if error.status == 404:
        return BadRequestError(http_errors.no_route(request.path))
    if error.status == 405:
        return BadRequestError(http_errors.method_not_allowed(request.method, request.path))
    return BadRequestError(http_errors.otherwise_bad(error.status, error.reason))


def _outcome(request: web.Request, failure: RouterError | None, status: int) -> Outcome:
    """An error that is the whole answer has its status; one after a head of 200 has another."""
    if status == CLIENT_GONE:
        return "client_gone"
    if failure is None or http_errors.status_for(request.path, failure.status) == status:
        return "complete"
    return "client_gone" if failure.client_is_the_cause else "cut"


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else UNKNOWN_ROUTE


def _span_attributes(
    method: str, exchange: Exchange, route: str, status: int, outcome: Outcome
) -> tuple[Attributes, str | None]:
    """The attributes of its span, and the span's error."""
    attributes: dict[str, AttributeValue] = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "sluice.request_id": exchange.id,
        "sluice.outcome": outcome,
    }
    if exchange.tenant is not None:
        attributes["sluice.tenant"] = exchange.tenant
    failure = exchange.failure if outcome != "client_gone" else None
    if failure is not None:
        attributes["error.type"] = failure.code
    elif status >= 400 and outcome != "client_gone":
        attributes["error.type"] = str(status)
    return attributes, None if failure is None else str(failure)


def _log(
    method: str, exchange: Exchange, route: str, status: int, outcome: Outcome, seconds: float
) -> None:
    served = route.startswith("/v1/")
    failure = exchange.failure
    logger.log(
        logging.INFO if served or status >= 400 else logging.DEBUG,
        "%s %s %s %d %s engine=%s seconds=%.3f trace=%s%s%s%s",
        exchange.id,
        method,
        route,
        status,
        outcome,
        exchange.engine or "-",
        seconds,
        trace_id(exchange.trace),
        "" if exchange.tenant is None else f" tenant={exchange.tenant}",
        "" if exchange.refusal is None else f" refused={exchange.refusal}",
        "" if failure is None else _reason(failure),
    )


def _reason(failure: RouterError) -> str:
    cause = failure.__cause__
    return f" error={failure}" + ("" if cause is None else f" cause={cause!r}")
