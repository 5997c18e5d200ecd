"""The router's exception tree, how each error reads in OpenAI's error JSON or Anthropic's, and what
an engine's error means: why an attempt failed, and whether another engine may be asked.

Every request that is not answered by an engine ends in a `RouterError`. An `AttemptFailedError`
never reaches a client: another engine is asked, or the `RouterError` in it is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from multidict import CIMultiDict
from sluice_contract.http_errors import (
    ANTHROPIC_PATHS,
    ENGINE_DIED,
    GRAMMAR_UNAVAILABLE,
    HANDED_BACK,
    INTERNAL_CODE,
    INTERNAL_MESSAGE,
    INVALID_REQUEST,
    OUT_OF_MEMORY,
    OVERLOADED,
    SERVER_ERROR,
    UNAVAILABLE,
    Mistake,
    error_for,
    error_object,
)
from sluice_contract.log_lines import shown
from sluice_contract.wire.handover import PREFILL_FAILED, PREFILL_UNAVAILABLE

JSON_CONTENT_TYPE = "application/json"
_MESSAGE_CHARACTERS: Final = 1000
"""Longest message: it may quote the client, and is both an answer and a log line."""
RetryReason = Literal[
    "connect",
    "broken",
    "unavailable",
    "queue_full",
    "uncompiled",
    "out_of_memory",
    "prefill",
    "prefill_unavailable",
    "mismatch",
    "signature",
    "other_key",
    "slow_client",
    "handed_back",
]
RETRIED_STATUSES: Final[dict[int, RetryReason]] = {
    HTTPStatus.FORBIDDEN: "signature",
    HTTPStatus.CONFLICT: "mismatch",
    HTTPStatus.TOO_MANY_REQUESTS: "queue_full",
    HTTPStatus.BAD_GATEWAY: "broken",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    OVERLOADED: "unavailable",
}
PRIVATE_REASONS: Final[frozenset[RetryReason]] = frozenset({"mismatch", "signature"})
"""A status has such a reason only in the answer to a private call."""
REASON_OF_CODE: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    GRAMMAR_UNAVAILABLE: "uncompiled",
    HANDED_BACK: "handed_back",
    OUT_OF_MEMORY: "out_of_memory",
    PREFILL_FAILED: "prefill",
    PREFILL_UNAVAILABLE: "prefill_unavailable",
}
"""Reasons by code, where the code of a 503 is more exact than the status."""
RESUMED_CODES: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    UNAVAILABLE: "unavailable",
    PREFILL_FAILED: "prefill",
    PREFILL_UNAVAILABLE: "prefill_unavailable",
}
"""Codes of error events after which another engine resumes the stream."""
ENGINE_NOT_AT_FAULT: Final[frozenset[RetryReason]] = frozenset(
    {
        "queue_full",
        "uncompiled",
        "out_of_memory",
        "mismatch",
        "signature",
        "slow_client",
        "handed_back",
    }
)
PREFILL_AT_FAULT: Final[frozenset[RetryReason]] = frozenset({"prefill", "prefill_unavailable"})
"""Failures of a pair's prefill engine; any other failure is its decode engine's."""
MAY_BE_THE_REQUEST: Final[frozenset[RetryReason]] = frozenset(
    {"broken", "uncompiled", "out_of_memory", "prefill", "slow_client"}
)
"""Failures that the request, or its client, may have caused."""
TrialEnd = Literal["answered", "failed", "unavailable", "prefill_unavailable", "none"]
"""How an attempt ends in a canary: it counts for the engine's revision, against it, against it
unless the engine (of a pair the prefill engine) drains, or not at all."""
_TRIAL_ENDS: Final[dict[RetryReason, TrialEnd]] = {
    "unavailable": "unavailable",
    "prefill_unavailable": "prefill_unavailable",
    "queue_full": "none",
    "mismatch": "none",
    "signature": "none",
    "slow_client": "none",
    "handed_back": "none",
}
"""Ends by reason; any other failure counts against the revision, also of an engine that stays
healthy: memory or a grammar that fails may be new."""
_NO_TRIAL: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.TOO_MANY_REQUESTS,
        499,  # the client has left
    }
)
"""Statuses that say nothing about a revision. Any other one from 400 on counts against it, also a
client's own mistake: a revision that takes no valid request looks like that, and such mistakes are
made on both sides alike."""
_SHOWN_CHARACTERS: Final = 100
"""Most characters shown of an error that an engine sent."""
_SERVER_ERRORS: Final = frozenset({INTERNAL_CODE, "generation_failed"})
_RETRY_AFTER_HEADER: Final = "Retry-After"
_RETRY_AFTER: Final = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "2"}


class RouterError(Exception):
    """Base. `code` is stable, `str()` is for a person."""

    status = 500
    type = SERVER_ERROR
    code = INTERNAL_CODE
    retry_after_seconds: int | None = None
    client_is_the_cause = False

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(shown(message, _MESSAGE_CHARACTERS))
        self.param = None if param is None else shown(param)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        headers = {"Content-Type": JSON_CONTENT_TYPE}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(self.retry_after_seconds)
        return headers

    @property
    def body(self) -> bytes:
        """OpenAI's error JSON."""
        return error_json(str(self), self.type, self.code, self.param)

    def body_for(self, path: str) -> bytes:
        """The error JSON for clients of the route with this path."""
        if path not in ANTHROPIC_PATHS:
            return self.body
        try:
            error = msgspec.json.decode(self.body, type=dict[str, Any])
            return msgspec.json.encode(error_for(path, self.status, error))
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            error = error_object(str(self), self.type, self.code, self.param)
            return msgspec.json.encode(error_for(path, self.status, error))


class BadRequestError(RouterError):
    """The request itself is at fault, as `status` and `code` say."""

    type = INVALID_REQUEST

    def __init__(self, mistake: Mistake, param: str | None = None) -> None:
        super().__init__(mistake.message, param)
        self.status = mistake.status
        self.code = mistake.code
        self._closes = mistake.closes

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer, with `Connection: close` if the rest of the request is not
        read."""
        return super().headers | ({"Connection": "close"} if self._closes else {})


class InternalError(RouterError):
    """A bug of ours; the log has the details."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_MESSAGE)


class OverloadedError(RouterError):
    """One of the router's caps is reached: requests, their bytes, or connections."""

    status = 429
    type = "rate_limit_error"
    code = "router_full"
    retry_after_seconds = 1


class NoEngineError(RouterError):
    """No usable engine appeared in time."""

    status = 503
    code = "no_engine"
    retry_after_seconds = 1


class EngineFailedError(RouterError):
    """An engine could not be reached, or broke off: before the first byte, or in the stream."""

    status = 502
    code = "engine_failed"


class OtherKeyError(RouterError):
    """An engine that requires the router's signature refused it, or got none. It gets
    none from a router without `auth`, or before it has reported."""

    status = 503
    code = "invalid_signature"
    retry_after_seconds = 2

    def __init__(self, engine: str) -> None:
        super().__init__(
            f"engine {engine} refuses the router's signature, or its lack: it has another key, its"
            " clock is wrong, or it has not reported yet"
        )


class SlowClientError(RouterError):
    """An engine broke off, perhaps because the client did not read."""

    status = 502
    code = "client_too_slow"
    client_is_the_cause = True


class EngineRefusedError(RouterError):
    """An engine refused where another one might not; passed on if no other is left to ask."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self._headers = dict(headers)
        self._body = body

    @property
    def headers(self) -> dict[str, str]:
        """Headers as the engine sent them."""
        return self._headers

    @property
    def body(self) -> bytes:
        """Body as the engine sent it."""
        return self._body


class DrainingError(RouterError):
    """This router is leaving."""

    status = 503
    code = "router_draining"
    retry_after_seconds = 1


class TimeLimitError(RouterError):
    """The request took longer than `upstream.requestTimeoutSeconds`."""

    status = 504
    code = "time_limit"


def error_json(message: str, type_: str, code: str, param: str | None = None) -> bytes:
    """The bytes of one OpenAI error object."""
    return msgspec.json.encode(error_object(message, type_, code, param))


class AttemptFailedError(Exception):
    """One engine did not answer; another one might."""

    def __init__(self, reason: RetryReason, error: RouterError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class EngineError(msgspec.Struct, frozen=True):
    """The fields of an engine's error JSON, as far as it can be read."""

    code: str | None = None
    type: str | None = None
    param: str | None = None

    @property
    def text(self) -> str:
        """Text for a log line: the error's code, and the field at fault."""
        code = self.code or self.type or "unknown"
        text = f"{code}:{self.param}" if self.param else code
        return text[:_SHOWN_CHARACTERS] if text.isprintable() else "unknown"


class _Refusal(msgspec.Struct):
    error: EngineError


def error_in(body: bytes) -> EngineError:
    """The error that an engine sent as JSON."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EngineError()


def refusal(error: bytes, *, nothing_sent: bool) -> AttemptFailedError | EngineRefusedError:
    """Meaning of an error event: the failure, if another engine may continue, else the error for
    the client. While nothing was sent to the client, errors are retried as in an answer with a
    status."""
    engine_error = error_in(error)
    reason = RESUMED_CODES.get(engine_error.code)
    if reason is None and nothing_sent:
        reason = REASON_OF_CODE.get(engine_error.code)
    status = _status(engine_error)
    headers = {"Content-Type": JSON_CONTENT_TYPE}
    if status in _RETRY_AFTER:
        headers[_RETRY_AFTER_HEADER] = _RETRY_AFTER[status]
    refused = EngineRefusedError(status, headers, error)
    return refused if reason is None else AttemptFailedError(reason, refused)


def trial_end(error: BaseException) -> TrialEnd:
    """How an attempt that ended with this error counts in a canary."""
    if isinstance(error, AttemptFailedError):
        return _TRIAL_ENDS.get(error.reason, "failed")
    if not isinstance(error, EngineRefusedError):
        return "failed" if isinstance(error, EngineFailedError) else "none"
    code = error_in(error.body).code
    reason = RESUMED_CODES.get(code) or REASON_OF_CODE.get(code)
    return _TRIAL_ENDS.get(reason, "failed") if reason else trial_end_of(error.status)


def trial_end_of(status: int) -> TrialEnd:
    """How an attempt that an engine answered with this status counts in a canary."""
    if status < HTTPStatus.BAD_REQUEST:
        return "answered"
    return "none" if status in _NO_TRIAL else "failed"


def soonest_retry(refusals: Sequence[RouterError]) -> RouterError:
    """The first of them, with the smallest Retry-After of all."""
    first, *others = (CIMultiDict(refusal.headers) for refusal in refusals)
    delays = [headers.get(_RETRY_AFTER_HEADER, "") for headers in (first, *others)]
    seconds = [int(value) for value in delays if value.isdecimal()]
    if not seconds:
        return refusals[0]
    first[_RETRY_AFTER_HEADER] = str(min(seconds))
    return EngineRefusedError(refusals[0].status, first, refusals[0].body)


def _status(error: EngineError) -> HTTPStatus:
    """The status that this error would have had as an answer."""
    if error.type == INVALID_REQUEST:
        return HTTPStatus.BAD_REQUEST
    if error.type == "rate_limit_error":
        return HTTPStatus.TOO_MANY_REQUESTS
    if error.code in _SERVER_ERRORS:
        return HTTPStatus.INTERNAL_SERVER_ERROR
    return HTTPStatus.SERVICE_UNAVAILABLE
