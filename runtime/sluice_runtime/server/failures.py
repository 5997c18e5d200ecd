"""Every error as OpenAI's error JSON, or Anthropic's, with its status and headers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request
from sluice_contract import http_errors
from sluice_contract.http_errors import (
    ENGINE_DIED,
    GRAMMAR_UNAVAILABLE,
    HANDED_BACK,
    INVALID_REQUEST,
    OUT_OF_MEMORY,
    SERVER_ERROR,
    TENANT_FULL,
    Mistake,
    error_object,
)
from sluice_contract.log_lines import shown
from sluice_contract.wire.handover import PREFILL_FAILED, PREFILL_UNAVAILABLE
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from sluice_runtime.errors import (
    AbortedError,
    ContextLengthError,
    EngineDiedError,
    GrammarUnavailableError,
    HandedBackError,
    InvalidRequestError,
    OverloadedError,
    PrefillFailedError,
    PrefillUnavailableError,
    RequestError,
    RequestOutOfMemoryError,
    SluiceRuntimeError,
    TemplateFailedError,
    TenantFullError,
    UnavailableError,
    UnsupportedFieldError,
)
from sluice_runtime.wire.messages import Refusal

_log = logging.getLogger(__name__)


class GenerationFailedError(SluiceRuntimeError):
    """The engine ended a request with an error; `str()` is for the client."""


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here: 404."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        allowed = ", ".join(map(repr, served))
        named = shown(name)
        super().__init__(f"model: {named!r} is not served here; allowed: {allowed}", "model")


class MistakenError(RequestError):
    """A mistake in the request that router and engine describe in the same words."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


@dataclass(frozen=True)
class Kind:
    """How one class of errors is reported to the client."""

    status: int
    type: str
    code: str | None
    retry_after_seconds: int | None = None
    closes: bool = False
    """Whether the connection is closed: the rest of the request would be read as the next one."""


REFUSALS: Final[Mapping[Refusal, type[RequestError]]] = {
    "overloaded": OverloadedError,
    "unavailable": UnavailableError,
    "uncompiled": GrammarUnavailableError,
    "out_of_memory": RequestOutOfMemoryError,
    "prefill_failed": PrefillFailedError,
    "prefill_unavailable": PrefillUnavailableError,
    "handed_back": HandedBackError,
}
"""Error class for each refusal of the engine, except `invalid`, whose error names a field."""
_KINDS: Final[Mapping[type[SluiceRuntimeError], Kind]] = {
    ContextLengthError: Kind(400, INVALID_REQUEST, "context_length_exceeded"),
    UnsupportedFieldError: Kind(400, INVALID_REQUEST, "unsupported_parameter"),
    InvalidRequestError: Kind(400, INVALID_REQUEST, "invalid_value"),
    ModelNotFoundError: Kind(404, INVALID_REQUEST, "model_not_found"),
    AbortedError: Kind(499, INVALID_REQUEST, "aborted"),
    TenantFullError: Kind(429, "rate_limit_error", TENANT_FULL, retry_after_seconds=1),
    OverloadedError: Kind(429, "rate_limit_error", "queue_full", retry_after_seconds=1),
    GenerationFailedError: Kind(500, SERVER_ERROR, "generation_failed"),
    TemplateFailedError: Kind(500, SERVER_ERROR, "template_failed"),
    EngineDiedError: Kind(503, SERVER_ERROR, ENGINE_DIED, retry_after_seconds=2),
    GrammarUnavailableError: Kind(503, SERVER_ERROR, GRAMMAR_UNAVAILABLE, retry_after_seconds=2),
    HandedBackError: Kind(503, SERVER_ERROR, HANDED_BACK, retry_after_seconds=2),
    RequestOutOfMemoryError: Kind(503, SERVER_ERROR, OUT_OF_MEMORY, retry_after_seconds=2),
    PrefillFailedError: Kind(503, SERVER_ERROR, PREFILL_FAILED, retry_after_seconds=2),
    PrefillUnavailableError: Kind(503, SERVER_ERROR, PREFILL_UNAVAILABLE, retry_after_seconds=2),
    UnavailableError: Kind(503, SERVER_ERROR, "unavailable", retry_after_seconds=2),
}
_INTERNAL: Final = Kind(500, SERVER_ERROR, http_errors.INTERNAL_CODE)


def error_body(error: Exception, path: str = "") -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`, or the form that clients of the route `path`
    expect. Gives no details of an unexpected error."""
    kind = _kind_of(error)
    message = str(error) if kind is not _INTERNAL else http_errors.INTERNAL_MESSAGE
    body = error_object(message, kind.type, kind.code, getattr(error, "param", None))
    return dict(http_errors.error_for(path, kind.status, body))


def error_response(error: Exception, path: str = "") -> Response:
    """The whole response of the route with this path; 429 and 503 carry Retry-After."""
    kind = _kind_of(error)
    wait = kind.retry_after_seconds
    headers = {} if wait is None else {"retry-after": str(wait)}
    if kind.closes:
        headers["connection"] = "close"
    status = http_errors.status_for(path, kind.status)
    return JSONResponse(error_body(error, path), status, headers)


def error_type(error: Exception) -> str:
    """Error type for a span: the code that clients see, or the class of an unexpected error."""
    kind = _kind_of(error)
    return type(error).__qualname__ if kind is _INTERNAL else kind.code or str(kind.status)


def log_unforeseen(error: Exception) -> None:
    """Logs an unexpected error with its traceback; expected errors are not logged here."""
    if _kind_of(error) is _INTERNAL:
        _log.error("unforeseen error in a request", exc_info=error)


def install_error_handlers(app: FastAPI) -> None:
    """Makes every error response of the application follow OpenAI's format."""
    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(SluiceRuntimeError, _request_error)
    app.add_exception_handler(Exception, _request_error)


async def _framework_error(request: Request, error: Exception) -> Response:
    """Response for 404, 405 and Starlette's other refusals."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code == 404:
        mistake = http_errors.no_route(path)
    elif error.status_code == 405:
        mistake = http_errors.method_not_allowed(request.method, path)
    else:
        mistake = http_errors.otherwise_bad(error.status_code, error.detail)
    response = error_response(MistakenError(mistake), path)
    response.headers.update(error.headers or {})
    return response


async def _request_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope["path"])


def _kind_of(error: Exception) -> Kind:
    if isinstance(error, MistakenError):
        mistake = error.mistake
        return Kind(mistake.status, INVALID_REQUEST, mistake.code, closes=mistake.closes)
    return next((k for tree, k in _KINDS.items() if isinstance(error, tree)), _INTERNAL)
