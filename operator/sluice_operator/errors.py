"""What can go wrong between the operator and the API server, as one tree of exceptions."""

from __future__ import annotations

from typing import NamedTuple


class OperatorError(Exception):
    """The root: everything the operator raises itself."""


class RequestError(OperatorError):
    """A request to the API server was not carried out, or nobody knows."""


class Cause(NamedTuple):
    """One finding of the API server's about an object that it refused as invalid."""

    reason: str
    field: str
    """Path of the field, e.g. `spec.ports[1].name`."""


class ApiError(RequestError):
    """The API server refused a request. `str()` names the request and the server's reason."""

    def __init__(
        self, request: str, status: int, reason: str, message: str, causes: tuple[Cause, ...] = ()
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.summary = f"{request}: {status} {reason}"
        """What was refused, without the server's own words."""
        super().__init__(f"{self.summary}: {message}")


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
