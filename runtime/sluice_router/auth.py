"""Who may send requests: API keys in the files of a folder, a file for each tenant. Also the
signed claims about a tenant that engines get: bounds of a request's priority, and a salt for the
prefix cache.

The folder is a mounted Secret, which changes while the router runs.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.router import Auth
from sluice_contract.http_errors import INVALID_REQUEST
from sluice_contract.wire.handover import Bound, Keys
from sluice_contract.wire.tenants import claims_of, signed_tenant

from sluice_router.errors import RouterError

logger = logging.getLogger("sluice.router")
LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the folder."""
MAX_KEY_BYTES: Final = 8192
SCHEME: Final = "bearer"
API_KEY_HEADER: Final = "X-Api-Key"
"""Where Anthropic's clients have the key."""
_Stamp = tuple[tuple[str, int, int, int], ...]
SignTenant = Callable[[str, str, Bound], str]
"""Value of `TENANT_HEADER` for a tenant's request with an id, for a path and a body."""


class UnauthorizedError(RouterError):
    """The request has no key, or an unknown one."""

    status = 401
    type = INVALID_REQUEST
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer, with the required scheme."""
        return super().headers | {"WWW-Authenticate": "Bearer"}


class ApiKeys:
    """The keys in a folder, as they are now. A key that is taken away is refused within
    `LOOK_SECONDS`; while the folder cannot be read, the keys stay as they were."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """Raises ConfigError where there is no such folder."""
        self._folder = folder
        self._clock = clock
        try:
            self._stamp = _stamp(folder)
            self._digests = dict(_read(folder))
        except OSError as error:
            allowed = f"a readable folder with a file for each tenant ({error.strerror})"
            raise ConfigError("auth.keysDirectory", str(folder), allowed) from None
        self._looked = clock()
        _log(self._digests)

    def tenant(self, authorization: str | None, api_key: str | None = None) -> str:
        """The tenant whose key the header Authorization has, or without it X-Api-Key. Takes equally
        long for any wrong key.

        Raises:
            UnauthorizedError: it has no key, or an unknown one.
        """
        self._look()
        if authorization is None and api_key is not None:
            authorization = f"{SCHEME} {api_key}"
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() != SCHEME or not key.strip():
            raise UnauthorizedError(
                "You didn't provide an API key. Provide it in the header Authorization, as in "
                "Authorization: Bearer YOUR_KEY"
            )
        digest = _digest(key.strip().encode("utf-8", "surrogateescape"))
        tenants = [
            name for name, known in self._digests.items() if hmac.compare_digest(known, digest)
        ]
        if not tenants:
            raise UnauthorizedError("Incorrect API key provided.")
        return tenants[0]

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            stamp = _stamp(self._folder)
            if stamp == self._stamp:
                return
            self._digests = dict(_read(self._folder))
        except OSError as error:
            logger.warning("API keys stay as they were: %s", error)
            return
        self._stamp = stamp
        _log(self._digests)


def _files(folder: Path) -> list[Path]:
    """A file for each tenant. Kubernetes keeps what it needs itself under names with two dots."""
    files = (path for path in folder.iterdir() if not path.name.startswith(".."))
    return sorted(path for path in files if path.is_file())


def _stamp(folder: Path) -> _Stamp:
    """Changes when a file does, or what a link leads to."""
    stats = ((path.name, path.stat()) for path in _files(folder))
    return tuple((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _read(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Each tenant with the digest of its key, which is all that is kept."""
    for path in _files(folder):
        key = path.read_bytes().strip()
        if 0 < len(key) <= MAX_KEY_BYTES and path.name.isprintable():
            yield path.name, _digest(key)
        else:
            logger.warning("API key of %a ignored: %d bytes", path.name, len(key))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _log(digests: dict[str, bytes]) -> None:
    logger.info("API keys of %d tenants: %s", len(digests), ", ".join(digests) or "none")


def tenant_signer(keys: Keys, auth: Auth, unix_clock: Callable[[], float]) -> SignTenant:
    """Signs with the service's key."""

    def sign(tenant: str, request_id: str, bound: Bound) -> str:
        key = keys()[0]
        claims = claims_of(key, auth.tenant(tenant))
        return signed_tenant(key, claims, request_id, unix_clock(), bound)

    return sign
