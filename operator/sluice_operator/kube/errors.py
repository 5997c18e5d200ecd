"""Failures between the operator and the API server, as one tree of exceptions. The loss of the
Lease stands outside this tree."""

from __future__ import annotations

from typing import Final, NamedTuple

from sluice_contract.cluster.list_watch import RefusedError

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
UNPROCESSABLE: Final = 422


class OperatorError(Exception):
    """The root: everything the operator raises itself."""


class RequestError(OperatorError):
    """A request to the API server failed, or it is unknown whether it succeeded."""


class Cause(NamedTuple):
    """One reason why the API server refused an object as invalid."""

    reason: str
    field: str
    """Path of the field, e.g. `spec.ports[1].name`."""


class ApiError(RequestError, RefusedError):
    """The API server refused a request. `str()` names the request and the server's reason."""

    def __init__(
        self, request: str, status: int, reason: str, message: str, causes: tuple[Cause, ...] = ()
    ) -> None:
        self.reason = reason
        self.message = message
        self.causes = causes
        self.summary = f"{request}: {status} {reason}"
        """The refused request, status and reason, without the server's message."""
        RefusedError.__init__(self, status, f"{self.summary}: {message}")


class NotFoundError(ApiError):
    """404: the object, or its kind, is not there."""


class ConflictError(ApiError):
    """409: the object exists already, or has changed since it was read."""


class TerminatingNamespaceError(ApiError):
    """The namespace is being deleted, or is gone: nothing can be created there any more."""


class UnavailableError(RequestError):
    """No usable response (no connection, time-out, 429, 5xx): the same request may be retried."""

    def __init__(self, request: str, cause: str, retry_after_seconds: float | None = None) -> None:
        self.retry_after_seconds = retry_after_seconds
        """Seconds in the response's Retry-After header; None without one."""
        super().__init__(f"{request}: {cause}")


class FailedApplyError(UnavailableError):
    """The API server answered an apply with 5xx and a reason: it may pass, or be permanent."""

    def __init__(self, refusal: ApiError, retry_after_seconds: float | None = None) -> None:
        self.refusal = refusal
        """The 5xx answer as a refusal, with the server's reason and message."""
        super().__init__(refusal.summary, refusal.message, retry_after_seconds)


class LeaseLostError(BaseException):
    """Another replica holds the Lease, or may hold it: this process must not write any more, and
    ends. It is no `Exception`, so code that continues after failures does not catch it."""


class DefinitionsMissingError(OperatorError):
    """The API server does not serve Sluice's kinds."""
