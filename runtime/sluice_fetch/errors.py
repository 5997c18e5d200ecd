"""Exceptions for models that could not be fetched: one tree; each class has a stable reason.

`from_hub` converts exceptions of huggingface_hub to these. Retries nothing.
"""

from __future__ import annotations

import errno
from typing import ClassVar

import httpx2
from huggingface_hub import errors as hub
from sluice_contract.cluster.termination import TOKEN_MISSING


class FetchError(Exception):
    """`reason` is stable CamelCase: it becomes the termination message and a condition."""

    reason: ClassVar[str]


class InvalidConfigError(FetchError):
    reason = "InvalidConfig"


class RepositoryNotFoundError(FetchError):
    reason = "RepositoryNotFound"


class RevisionNotFoundError(FetchError):
    reason = "RevisionNotFound"


class AccessDeniedError(FetchError):
    reason = "AccessDenied"


class NotAModelError(FetchError):
    """The repository lacks files that an engine needs."""

    reason = "NotAModel"


class NotAnAdapterError(FetchError):
    """The repository lacks files of an adapter in PEFT's format."""

    reason = "NotAnAdapter"


class NoSpaceError(FetchError):
    """The missing files do not fit on the cache's volume."""

    reason = "NoSpace"


class CacheFailedError(FetchError):
    """The cache's volume cannot be written to."""

    reason = "CacheFailed"


class FileCorruptError(FetchError):
    reason = "FileCorrupt"


class ObjectChangedError(FetchError):
    """A bucket no longer holds the objects that were resolved."""

    reason = "ObjectChanged"


class TransientError(FetchError):
    """Trying again may help, after `retry_after_seconds` if the hub gives it."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class TokenMissingError(TransientError):
    """The token's file is missing; its Secret may be created a moment later."""

    reason = TOKEN_MISSING


class RateLimitedError(TransientError):
    reason = "RateLimited"


class HubUnreachableError(TransientError):
    reason = "HubUnreachable"


def from_hub(error: Exception, what: str) -> FetchError:
    """The `FetchError` for an `error` of huggingface_hub or its HTTP client, raised over `what`."""
    if isinstance(error, hub.GatedRepoError | hub.DisabledRepoError):
        return AccessDeniedError(f"{what}: gated; it needs a token whose owner has access")
    if isinstance(error, hub.RepositoryNotFoundError):
        return RepositoryNotFoundError(f"{what}: does not exist, or is private and needs a token")
    if isinstance(error, hub.RevisionNotFoundError):
        return RevisionNotFoundError(f"{what}: there is no such branch, tag or commit")
    if isinstance(error, hub.RemoteEntryNotFoundError):
        return FileCorruptError(f"{what}: listed by the hub, which does not have it")
    if isinstance(error, hub.HfHubHTTPError):
        return _from_status(error.response, what)
    if isinstance(error, httpx2.TransportError):
        return HubUnreachableError(f"{what}: {type(error).__name__}: {error}")
    return HubUnreachableError(f"{what}: no answer of a hub: {type(error).__name__}: {error}")


def from_disk(error: OSError) -> FetchError:
    """The `FetchError` for an `error` of the cache's volume."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"{error.filename or 'cache'}: the volume is full")
    return CacheFailedError(f"{error.filename or 'cache'}: {error.strerror}")


def _from_status(response: httpx2.Response, what: str) -> FetchError:
    status = response.status_code
    retry_after = _seconds(response.headers.get("Retry-After"))
    if status == 429:
        return RateLimitedError(f"{what}: the hub answers 429, too many requests", retry_after)
    if status in (401, 403):
        return AccessDeniedError(f"{what}: the hub answers {status}; it needs a token with access")
    if status == 404:
        return RepositoryNotFoundError(f"{what}: the hub answers 404")
    return HubUnreachableError(f"{what}: the hub answers {status}", retry_after)


def _seconds(value: str | None) -> float | None:
    """Seconds of a Retry-After header; None for its other form, a date."""
    return float(value) if value is not None and value.isdecimal() else None
