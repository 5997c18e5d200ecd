"""The router's exception tree, and how each error reads in OpenAI's error JSON.

Every request that is not answered by an engine ends in one of these. Knows no routes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

JSON_CONTENT_TYPE = "application/json"


class RouterError(Exception):
    """Base: what the client is told. `code` is stable, `str()` is for a person."""

    status = 500
    type = "server_error"
    code = "internal_error"
    retry_after_seconds: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

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

    type = "invalid_request_error"

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.status = status
        self.code = code


class NoEngineError(RouterError):
    """No usable engine appeared in time."""

    status = 503
    type = "service_unavailable"
    code = "no_engine"
    retry_after_seconds = 1


class EngineFailedError(RouterError):
    """An engine could not be reached, or broke off: before the first byte, or in the stream."""

    status = 502
    code = "engine_failed"


class SlowClientError(RouterError):
    """An engine broke off, and the client, which did not read, may be the reason."""

    status = 502
    code = "client_too_slow"


class EngineRefusedError(RouterError):
    """An engine said no in a way that another might not; passed on when none is left to ask."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self._headers = dict(headers)
        self._body = body

    @property
    def headers(self) -> dict[str, str]:
        """The engine's own."""
        return self._headers

    @property
    def body(self) -> bytes:
        """The engine's own."""
        return self._body


class DrainingError(RouterError):
    """This router is leaving."""

    status = 503
    type = "service_unavailable"
    code = "router_draining"
    retry_after_seconds = 1


class TimeLimitError(RouterError):
    """The request took longer than `upstream.requestTimeoutSeconds`."""

    status = 504
    code = "time_limit"


def error_json(message: str, type_: str, code: str, param: str | None = None) -> bytes:
    """The bytes of one OpenAI error object."""
    error = {"message": message, "type": type_, "param": param, "code": code}
    return msgspec.json.encode({"error": error})
