"""Error responses that router and engine both send: OpenAI's error object or, on Anthropic's
routes, Anthropic's. Knows no server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import pydantic_core

from sluice_contract.http_heads import MAX_HEAD_BYTES, MAX_HEADER_BYTES, MAX_HEADERS
from sluice_contract.log_lines import shown

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"
INTERNAL_CODE: Final = "internal_error"
INTERNAL_MESSAGE: Final = "internal error; the log has the details under the request's id"


MESSAGES_PATH: Final = "/v1/messages"
COUNT_TOKENS_PATH: Final = "/v1/messages/count_tokens"
ANTHROPIC_PATHS: Final = frozenset({MESSAGES_PATH, COUNT_TOKENS_PATH})
OVERLOADED: Final = 529
"""Status that Anthropic's API answers where others answer 503."""
_ANTHROPIC_TYPES: Final = {
    400: INVALID_REQUEST,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
"""Anthropic's error type by status; `error_for` handles other statuses by their class."""

_ROUTES: Final = (["chat", "completions"], ["completions"], ["responses"], ["models"])
"""Routes of OpenAI, below the base URL."""
_ANTHROPIC_ROUTES: Final = (["v1", "messages"], ["v1", "messages", "count_tokens"])
"""Routes of Anthropic, with the base URL's path."""
_OTHER_TASKS: Final = {
    "embeddings": "makes no embeddings",
    "rerank": "ranks no documents",
    "score": "scores no texts",
    "audio": "neither hears nor speaks",
    "images": "makes no images",
    "videos": "makes no videos",
    "moderations": "moderates nothing",
    "assistants": "keeps no assistants",
    "threads": "keeps no threads",
    "files": "keeps no files",
    "uploads": "keeps no files",
    "vector_stores": "keeps no files",
    "batches": "runs no batches",
    "fine_tuning": "trains no models",
    "realtime": "holds no realtime sessions",
}
"""Routes of OpenAI and vLLM below /v1 for tasks that this server does not do, with the end of a
message that says so."""
_BASE_URL: Final = "; allowed: /{}, as with a client whose base URL ends {}"

_LOOKED_AT_BYTES: Final = 1024
_PARSED_AGAIN_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Mistake:
    """A request that cannot be served as it was sent."""

    status: int
    code: str
    message: str
    closes: bool = False
    """Whether the connection is closed too, since the rest of this request would be read as the
    next request."""


def error_object(
    message: str, type_: str, code: str | None, param: str | None = None
) -> dict[str, Any]:
    """OpenAI's error JSON."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def status_for(path: str, status: int) -> int:
    """Status of an error on the route with this path: Anthropic's routes have their own for 503."""
    return OVERLOADED if status == 503 and path in ANTHROPIC_PATHS else status


def error_for(path: str, status: int, error: Mapping[str, Any]) -> Mapping[str, Any]:
    """The error JSON for the route with this path. `error`: OpenAI's error JSON, or a result of
    this function. `param` and `code` are kept in Anthropic's form."""
    if path not in ANTHROPIC_PATHS:
        return error
    of_class = "api_error" if status >= 500 else INVALID_REQUEST
    kind = _ANTHROPIC_TYPES.get(status_for(path, status), of_class)
    return {"type": "error", "error": {**error["error"], "type": kind}}


def closing_response(status: int, body: bytes, headers: str = "") -> bytes:
    """A complete HTTP response that closes the connection, for code without an HTTP library.

    `headers`: further ones, each ending in CRLF.
    """
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{headers}connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def no_route(path: str) -> Mistake:
    """A 404 whose message says what this server does, or which base URL the client should have."""
    parts = [part for part in path.split("/") if part]
    if len(parts) > 1 and parts[0] == "v1" and parts[1] in _OTHER_TASKS:
        message = (
            f"{shown(path)}: this server generates text and {_OTHER_TASKS[parts[1]]}; allowed: "
            "/v1/chat/completions, /v1/responses, /v1/completions"
        )
        return Mistake(404, "not_found", message)
    hint = ""
    if (route := _meant(parts, _ROUTES)) is not None:
        hint = _BASE_URL.format("/".join(["v1", *route]), "in /v1")
    elif (route := _meant(parts, _ANTHROPIC_ROUTES)) is not None:
        hint = _BASE_URL.format("/".join(route), "before /v1")
    return Mistake(404, "not_found", f"{shown(path)}: no such route{hint}")


def _meant(parts: list[str], routes: Iterable[list[str]]) -> list[str] | None:
    return next((route for route in routes if parts[-len(route) :] == route), None)


def method_not_allowed(method: str, path: str) -> Mistake:
    """A 405; the header Allow names the allowed methods."""
    return Mistake(405, "method_not_allowed", f"{method} is not allowed on {shown(path)}")


def not_json(body: bytes) -> Mistake:
    """A 400 for a body that is not a JSON object. The error's position is named only for short
    bodies, so that the cost does not grow with the size."""
    begin = body[:_LOOKED_AT_BYTES].lstrip(b" \t\r\n")
    if begin and begin[:1] != b"{":
        text = shown(begin.decode(errors="replace"))
        return Mistake(400, "invalid_json", f"the body is {text}; allowed: a JSON object")
    reason = ""
    if len(body) <= _PARSED_AGAIN_BYTES:
        try:
            pydantic_core.from_json(body, allow_inf_nan=False)
        except ValueError as error:
            reason = f": {error}"
    return Mistake(400, "invalid_json", f"the body is not JSON that can be read{reason}")


def body_too_large(most_bytes: int) -> Mistake:
    """413."""
    message = f"the body is too large; allowed: {most_bytes} bytes (server.maxBodyBytes)"
    return Mistake(413, "body_too_large", message)


def body_too_late(seconds: float) -> Mistake:
    """408."""
    message = f"the body did not arrive within {seconds:g} seconds"
    return Mistake(408, "body_timeout", message, closes=True)


def head_too_late(seconds: float) -> Mistake:
    """408."""
    message = f"the request's head did not arrive within {seconds:g} seconds"
    return Mistake(408, "head_timeout", message, closes=True)


def wrong_encoding(encoding: str | None) -> Mistake | None:
    """415 for a body that is compressed; None for one that is not."""
    if encoding is None or encoding.lower() == "identity":
        return None
    message = f"Content-Encoding: {shown(encoding)!r} is not allowed; allowed: identity"
    return Mistake(415, "unsupported_encoding", message)


def head_too_large(target_bytes: int, headers: Iterable[tuple[str, int]]) -> Mistake | None:
    """414 or 431 for a request's head beyond the caps; None for one within them.

    `headers`: name, and length of name and value in bytes, of each.
    """
    if target_bytes > MAX_HEADER_BYTES:
        message = f"the request's target has {target_bytes} bytes; allowed: {MAX_HEADER_BYTES}"
        return Mistake(414, "target_too_long", message, closes=True)
    count = total = 0
    for name, size in headers:
        count, total = count + 1, total + size
        if size > MAX_HEADER_BYTES:
            named = shown(name.lower())
            message = f"{named}: the header has {size} bytes; allowed: {MAX_HEADER_BYTES}"
            return Mistake(431, "header_too_large", message, closes=True)
    if count > MAX_HEADERS:
        message = f"the request has {count} headers; allowed: {MAX_HEADERS}"
        return Mistake(431, "too_many_headers", message, closes=True)
    return head_too_long() if target_bytes + total > MAX_HEAD_BYTES else None


def head_too_long() -> Mistake:
    """A 431 for a head that is too long as a whole, whether or not it was read to its end."""
    message = f"the request's head is too long; allowed: {MAX_HEAD_BYTES} bytes"
    return Mistake(431, "head_too_large", message, closes=True)


def not_http() -> Mistake:
    """A 400 for bytes that are not an HTTP request."""
    return Mistake(400, "bad_request", "this is not a valid HTTP request", closes=True)


def otherwise_bad(status: int, reason: str | None) -> Mistake:
    """The error for any other refusal by an HTTP library."""
    return Mistake(status, "bad_request", reason or "bad request")


ENGINE_DIED: Final = "engine_died"
"""Error code of a 503: the engine process ended while it had the request, perhaps because of it."""

GRAMMAR_UNAVAILABLE: Final = "grammar_unavailable"
"""Error code of a 503: the engine is healthy, but its grammar library failed with the request's
grammar."""

OUT_OF_MEMORY: Final = "out_of_memory"
"""Error code of a 503: the engine is healthy, but a step with the request ran out of memory,
perhaps because of the request."""

HANDED_BACK: Final = "handed_back"
"""Error code of a 503: at the router's request the engine gave back a request that it had not
begun."""

TENANT_FULL: Final = "tenant_full"
"""Error code of a 429: this tenant's share of the engine's queue is full; other tenants are
served."""

UNAVAILABLE: Final = "unavailable"
"""Error code of a 503, or of an event that ends a stream: the engine drains or is not ready."""
