"""Filters at the router's edge: request headers and bodies to engines, response headers to clients
and to web pages (CORS).

Only listed headers of a request are passed on. A body with a field that only router and engines may
set is refused. Bodies are otherwise passed on byte for byte; engines check their fields.

A browser sends a preflight without the API key, so it is answered before keys are checked. Keys
travel in `Authorization`, never in cookies, so CORS does not allow credentials.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from aiohttp import web
from multidict import CIMultiDict
from sluice_contract import http_errors
from sluice_contract.config.cors import (
    ANY_ORIGIN,
    METHODS,
    PREFLIGHT_SECONDS,
    READABLE_HEADERS,
    Cors,
)
from sluice_contract.http_errors import Mistake
from sluice_contract.http_heads import (
    REQUEST_ID_HEADER,
    ROUTING_KEY_HEADER,
    is_acceptable_request_id,
)
from sluice_contract.log_lines import shown
from sluice_contract.wire.json_weight import LIGHT_BYTES, MAX_VALUES, has_too_many_texts
from sluice_contract.wire.spans import (
    TRACEPARENT_HEADER,
    TRACESTATE_HEADER,
    new_traceparent,
    trace_id,
)

from sluice_router.errors import BadRequestError

PASSED_REQUEST_HEADERS: Final = (
    "Accept", "Content-Type", ROUTING_KEY_HEADER,
)  # fmt: skip
"""Nothing else reaches an engine: no credentials, no cookies, no internal header."""
DROPPED_RESPONSE_HEADERS: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "date", "server", "x-request-id",
    }
)  # fmt: skip
"""Hop-by-hop headers, and those that the router writes itself."""
INTERNAL_FIELDS: Final = frozenset({"rid", "room", "epoch", "data_parallel_rank"})
INTERNAL_PREFIXES: Final = ("bootstrap_", "disagg_", "kv_", "room_", "sluice_")
_ORIGIN: Final = "Origin"
_REQUESTED_METHOD: Final = "Access-Control-Request-Method"
_REQUESTED_HEADERS: Final = "Access-Control-Request-Headers"
_ALLOWED_ORIGIN: Final = "Access-Control-Allow-Origin"
_TEXT: Final = msgspec.json.Decoder(str)
_BODY: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def request_id(client_id: str | None) -> str:
    """The client's id when it is harmless to log and pass on, else a new one."""
    if client_id is not None and is_acceptable_request_id(client_id):
        return client_id
    return f"req-{uuid.uuid4().hex}"


def traceparent(client_value: str | None) -> str:
    """The client's if it is one, else that of a new trace."""
    if client_value is not None and trace_id(client_value):
        return client_value
    return new_traceparent()


def request_headers(client: Mapping[str, str], id_: str, trace: str) -> dict[str, str]:
    """Headers for the engine. They request no compression: an answer's bytes pass unchanged.

    Raises:
        BadRequestError: 400, one that is passed on is not UTF-8; names it.
    """
    headers = {name: client[name] for name in PASSED_REQUEST_HEADERS if name in client}
    headers[TRACEPARENT_HEADER] = trace
    is_theirs = trace_id(client.get(TRACEPARENT_HEADER)) == trace_id(trace)
    if is_theirs and TRACESTATE_HEADER in client:
        headers[TRACESTATE_HEADER] = client[TRACESTATE_HEADER]
    for name, value in headers.items():
        _refuse_other_bytes(name, value)
    return headers | {REQUEST_ID_HEADER: id_, "Accept-Encoding": "identity"}


def _refuse_other_bytes(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:  # aiohttp decodes with surrogateescape
        message = f"{name}: {shown(value)} is not allowed; allowed: UTF-8"
        raise BadRequestError(Mistake(400, "invalid_value", message), name) from None


def check_head(target: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a request whose head is beyond the caps.

    Raises:
        BadRequestError: 414 or 431, naming the header.
    """
    sizes = ((name.decode("latin-1"), len(name) + len(value)) for name, value in headers)
    if mistake := http_errors.head_too_large(len(target), sizes):
        raise BadRequestError(mistake)


def response_headers(engine: Mapping[str, str]) -> dict[str, str]:
    """An engine's headers for the client."""
    named = {name.strip().lower() for name in engine.get("Connection", "").split(",")}
    dropped = DROPPED_RESPONSE_HEADERS | named
    return {name: value for name, value in engine.items() if name.lower() not in dropped}


class BodyFields(NamedTuple):
    """Fields of a body that the router reads."""

    streams: bool
    """Whether the client requests a stream of events."""
    model: str | None
    """The model or adapter that it names."""


def check_body(body: bytes) -> BodyFields:
    """Refuse a body that is no JSON object or that carries a field of the router's own.

    Raises:
        BadRequestError: 400, naming the field.
    """
    if len(body) > LIGHT_BYTES and has_too_many_texts(body):
        message = f"the body: holds too many values; allowed: {MAX_VALUES} texts, lists and objects"
        raise BadRequestError(Mistake(400, "invalid_value", message))
    try:
        fields = _BODY.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise BadRequestError(http_errors.not_json(body)) from None
    for name in fields:
        if name in INTERNAL_FIELDS or name.startswith(INTERNAL_PREFIXES):
            named = shown(name)
            message = f"{named}: not allowed in a request; it is set by the service itself"
            raise BadRequestError(Mistake(400, "internal_field", message), name)
    streams = "stream" in fields and bytes(fields["stream"]) == b"true"
    return BodyFields(streams, _text(fields["model"]) if "model" in fields else None)


def _text(value: msgspec.Raw) -> str | None:
    try:
        return _TEXT.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # the engine answers what is wrong with it


class CorsHeaders:
    """The headers for one setting."""

    def __init__(self, cors: Cors) -> None:
        self._origins = frozenset(cors.allowed_origins)
        self._any = ANY_ORIGIN in self._origins

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a preflight; None for any other request. It allows all headers that are
        requested: the routes ignore those that they do not know."""
        if request.method != "OPTIONS" or _REQUESTED_METHOD not in request.headers:
            return None
        headers = {
            "Access-Control-Allow-Methods": ", ".join(METHODS),
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
            "Vary": f"{_REQUESTED_METHOD}, {_REQUESTED_HEADERS}",
        }
        if requested := request.headers.get(_REQUESTED_HEADERS):
            headers["Access-Control-Allow-Headers"] = requested
        return web.Response(status=204, headers=headers)

    def add_headers(self, request: Mapping[str, str], response: CIMultiDict[str]) -> None:
        """Add what lets the page of an allowed origin read the answer, and, for caches, whether the
        answer depends on the origin."""
        origin = request.get(_ORIGIN)
        if origin is not None and (self._any or origin in self._origins):
            response[_ALLOWED_ORIGIN] = ANY_ORIGIN if self._any else origin
            response["Access-Control-Expose-Headers"] = ", ".join(READABLE_HEADERS)
        if not self._any:
            response.add("Vary", _ORIGIN)
