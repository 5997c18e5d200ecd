"""Why an attempt failed, by what the engine said, and whether another engine may be asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, Literal

import msgspec
from multidict import CIMultiDict
from sluice_contract.http_errors import (
    ENGINE_DIED,
    GRAMMAR_UNAVAILABLE,
    INTERNAL_CODE,
    INVALID_REQUEST,
    OUT_OF_MEMORY,
    UNAVAILABLE,
)
from sluice_contract.wire.handover import PREFILL_FAILED, PREFILL_UNAVAILABLE

from sluice_router.errors import JSON_CONTENT_TYPE, EngineRefusedError, RouterError

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
]

RETRIED_STATUSES: Final[dict[int, RetryReason]] = {
    HTTPStatus.FORBIDDEN: "signature",
    HTTPStatus.CONFLICT: "mismatch",
    HTTPStatus.TOO_MANY_REQUESTS: "queue_full",
    HTTPStatus.BAD_GATEWAY: "broken",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}
PRIVATE_REASONS: Final[frozenset[RetryReason]] = frozenset({"mismatch", "signature"})
"""Statuses for these say so of private calls only."""
REASON_OF_CODE: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    GRAMMAR_UNAVAILABLE: "uncompiled",
    OUT_OF_MEMORY: "out_of_memory",
    PREFILL_FAILED: "prefill",
    PREFILL_UNAVAILABLE: "prefill_unavailable",
}
"""Where the code of a 503 says more than the status."""
RESUMED_CODES: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    UNAVAILABLE: "unavailable",
    PREFILL_FAILED: "prefill",
    PREFILL_UNAVAILABLE: "prefill_unavailable",
}
"""Codes of error events after which another engine goes on with a stream."""
_SHOWN_CHARACTERS: Final = 100
"""Of an error that an engine sent."""
_SERVER_ERRORS: Final = frozenset({INTERNAL_CODE, "generation_failed"})
_RETRY_AFTER_HEADER: Final = "Retry-After"
_RETRY_AFTER: Final = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "2"}


class AttemptFailedError(Exception):
    """One engine did not answer; another one might."""

    def __init__(self, reason: RetryReason, error: RouterError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class EngineError(msgspec.Struct, frozen=True):
    """What an engine's error JSON says, as far as it can be read."""

    code: str | None = None
    type: str | None = None
    param: str | None = None

    @property
    def words(self) -> str:
        """In a log line: its code, and the field at fault."""
        code = self.code or self.type or "unknown"
        words = f"{code}:{self.param}" if self.param else code
        return words[:_SHOWN_CHARACTERS] if words.isprintable() else "unknown"


class _Refusal(msgspec.Struct):
    error: EngineError


def error_in(body: bytes) -> EngineError:
    """The error that an engine sent as JSON."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return EngineError()


def refusal(error: bytes, *, nothing_sent: bool) -> AttemptFailedError | EngineRefusedError:
    """The failure, if another engine may go on, else the error for the client. While the client has
    nothing, that is whenever one would be asked after an answer with a status."""
    said = error_in(error)
    reason = RESUMED_CODES.get(said.code)
    if reason is None and nothing_sent:
        reason = REASON_OF_CODE.get(said.code)
    status = _status(said)
    headers = {"Content-Type": JSON_CONTENT_TYPE}
    if status in _RETRY_AFTER:
        headers[_RETRY_AFTER_HEADER] = _RETRY_AFTER[status]
    refused = EngineRefusedError(status, headers, error)
    return refused if reason is None else AttemptFailedError(reason, refused)


def soonest(refusals: Sequence[RouterError]) -> RouterError:
    """The first of them, with the smallest Retry-After of all."""
    first, *others = (CIMultiDict(refusal.headers) for refusal in refusals)
    given = [headers.get(_RETRY_AFTER_HEADER, "") for headers in (first, *others)]
    seconds = [int(value) for value in given if value.isdecimal()]
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
