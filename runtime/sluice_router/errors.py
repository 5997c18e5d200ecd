"""The router's exception tree, and how each error reads in OpenAI's error JSON.

Every request that is not answered by an engine ends in one of these. Knows no routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from sluice_contract.http_errors import (
    INTERNAL_CODE,
    INTERNAL_MESSAGE,
    INVALID_REQUEST,
    SERVER_ERROR,
    Mistake,
    error_object,
    shown,
)

JSON_CONTENT_TYPE = "application/json"
_MESSAGE_CHARACTERS: Final = 1000
"""A message may have a client's words in it, and is an answer and a line of the log."""


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


class BadRequestError(RouterError):
    """The request itself is at fault; `status` and `code` say how."""

    type = INVALID_REQUEST

    def __init__(self, mistake: Mistake, param: str | None = None) -> None:
        super().__init__(mistake.message, param)
        self.status = mistake.status
        self.code = mistake.code
        self._closes = mistake.closes

    @property
    def headers(self) -> dict[str, str]:
        """With `Connection: close` if the rest of the request is not read."""
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
    """An engine that cannot serve without the router's signature did not take it, or got none: one
    beside `auth`, of which this router knows nothing, and which has not reported yet."""

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
    """An engine refused where another one might not; passed on if none is left to ask."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self._headers = dict(headers)
        self._body = body

    @property
    def headers(self) -> dict[str, str]:
        """As the engine sent them."""
        return self._headers

    @property
    def body(self) -> bytes:
        """As the engine sent them."""
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
