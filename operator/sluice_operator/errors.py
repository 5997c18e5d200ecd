"""What can go wrong between the operator and the API server, as one tree of exceptions."""

from __future__ import annotations


class OperatorError(Exception):
    """The root: everything the operator raises itself."""


class RequestError(OperatorError):
    """A request to the API server was not carried out, or nobody knows."""


class ApiError(RequestError):
    """The API server refused a request. `str()` names the request and the server's reason."""

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        super().__init__(f"{request}: {status} {reason}: {message}")


class NotFoundError(ApiError):
    """404: the object, or its kind, is not there."""


class ConflictError(ApiError):
    """409: it exists already, or is no longer the one that was meant."""


class UnavailableError(RequestError):
    """No usable answer (no connection, time-out, 429, 5xx): to be tried again, unchanged."""

    def __init__(self, request: str, cause: str, retry_after_seconds: float | None = None) -> None:
        self.retry_after_seconds = retry_after_seconds
        """Set when the server said how long to stay away."""
        super().__init__(f"{request}: {cause}")


class LeaseLostError(OperatorError):
    """Another replica holds the Lease, or may: this process must not write any more."""


class DefinitionsMissingError(OperatorError):
    """The API server does not serve Sluice's kinds."""
