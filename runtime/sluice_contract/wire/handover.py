"""How the router names the prefill engine of a request to the decode engine: a signed header.

A decode engine takes a request only with this header, so no client can make one engine connect to
another. Also holds a service's keys and what all signed headers share.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from sluice_contract.base import ConfigError, ContractModel

PREFILL_HEADER: Final = "X-Sluice-Prefill"
"""`BASE64URL(JSON).HEX(HMAC-SHA256)`, from the router to a decode engine."""
HEADER_SECONDS: Final = 60.0
"""How long a header is valid; clocks of nodes must differ by less."""
PREFILL_FAILED: Final = "prefill_failed"
"""Error code of a 503 of a decode engine: the prefill engine failed or refused for now, or pages
did not arrive; another pair may serve the request."""
PREFILL_UNAVAILABLE: Final = "prefill_unavailable"
"""Error code of a 503 of a decode engine: the prefill engine never took the request, because it
drains, cannot be reached, or is another engine than was meant. So the request cannot be at
fault."""
MIN_KEY_BYTES: Final = 32
SECOND_KEY: Final = "second-key"
"""Name of an optional file next to the key's file; its key verifies too, but never signs."""
LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the files of the keys."""
_LABEL: Final = b"sluice prefill header 1\0"
_PATH: Final = "path"
_DIGEST: Final = "bodySha256"

Keys = Callable[[], Sequence[bytes]]
"""The keys of a service as they are now: the first signs, each verifies."""
ContentT = TypeVar("ContentT")

logger = logging.getLogger("sluice.handover")


class InvalidSignatureError(Exception):
    """A header or a hello message was not signed with the key, or was signed too long ago. The
    message says which, and never shows the value."""


class PrefillRef(ContractModel):
    """One prefill engine in one epoch, with its bootstrap endpoint."""

    host: str = Field(min_length=1, max_length=253)
    port: int = Field(ge=1, le=65535)
    epoch: str = Field(min_length=1, max_length=64)
    name: str = Field(max_length=253, default="")
    """Name of the pod, for messages."""


class Bound(NamedTuple):
    """Path and body to which a signed header is bound, in addition to the request's id."""

    path: str
    """Path as the engine gets it, still percent-encoded, without a query."""
    body_sha256: str
    """SHA-256 of the body as the engine gets it, in hexadecimal."""


class Verified(NamedTuple, Generic[ContentT]):
    """Content that a router has signed, once `refuse_other_body` has checked the body."""

    content: ContentT
    body_sha256: str


class KeyFiles:
    """Current keys of a service, in a file and in an optional one next to it. While they cannot be
    read, the keys stay as they were."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Raises OSError for files that cannot be read, ValueError for a key that is too short."""
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path)
        self._keys = read_keys(path)
        self._looked = clock()

    def current(self) -> tuple[bytes, ...]:
        """Current keys, see `Keys`; looks for changes at most once in `LOOK_SECONDS`."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._keys

    def _look(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            keys = read_keys(self._path)
            if _stamp(self._path) != stamp:
                return  # both files are read in one state, or neither is used
        except (OSError, ValueError) as error:
            logger.warning("keys stay as they were: %s", error)
            return
        self._keys, self._stamp = keys, stamp
        names = [hashlib.sha256(key).hexdigest()[:8] for key in keys]
        logger.info("keys read again (begin of SHA-256): signs with %s", ", verifies ".join(names))


def _stamp(path: Path) -> list[tuple[int, int, int]]:
    """Value that changes when a file, or the target of a link, changes."""
    files = [file for file in (path, path.with_name(SECOND_KEY)) if file.exists()]
    return [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in map(Path.stat, files)]


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Keys of a service, from the file that the operator mounts and the optional one next to it.

    Raises:
        OSError: a file cannot be read.
        ValueError: a key is too short.
    """
    second = path.with_name(SECOND_KEY)
    return tuple(_read_key(file) for file in (path, second) if file == path or file.exists())


def _read_key(path: Path) -> bytes:
    key = path.read_bytes().strip()
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"{path}: {len(key)} bytes; allowed: at least {MIN_KEY_BYTES}")
    return key


def configured_keys(path: str | None, clock: Callable[[], float]) -> Keys:
    """Keys in the file that `handoverKeyFile` names, and in the optional one next to it.

    Raises:
        ConfigError: `path` is None, or its file cannot be used.
    """
    allowed = f"a readable file with a key of at least {MIN_KEY_BYTES} bytes"
    if path is None:
        raise ConfigError("handoverKeyFile", None, f"{allowed}, with roles prefill and decode")
    try:
        return KeyFiles(Path(path), clock).current
    except OSError as error:
        raise ConfigError("handoverKeyFile", path, f"{allowed} ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError("handoverKeyFile", path, f"{allowed} ({error})") from None


def signed_header(
    key: bytes, prefill: PrefillRef, request_id: str, now_unix: float, bound: Bound
) -> str:
    """The header's value, valid for this request for `HEADER_SECONDS`."""
    return signed_claims(key, _LABEL, prefill.to_json_dict(), request_id, now_unix, bound)


def verified_header(
    keys: Sequence[bytes], value: str, request_id: str, path: str, now_unix: float
) -> Verified[PrefillRef]:
    """Content that a router signed for this request.

    Raises:
        InvalidSignatureError: it is not signed with these keys, is of another request, or too old.
    """
    try:
        claims, digest = verified_claims(keys, _LABEL, value, request_id, path, now_unix)
        return Verified(PrefillRef.model_validate(claims), digest)
    except ValidationError as error:
        says = error.errors()[0]["msg"]
    except InvalidSignatureError as error:
        says = str(error)
    raise InvalidSignatureError(f"{PREFILL_HEADER}: {says}")


def signed_claims(
    key: bytes,
    label: bytes,
    claims: dict[str, Any],
    request_id: str,
    now_unix: float,
    bound: Bound,
) -> str:
    """`BASE64URL(JSON).HEX(HMAC-SHA256)` of claims about one request, its path and its body."""
    claims = claims | {_PATH: bound.path, _DIGEST: bound.body_sha256}
    claims = claims | {"requestId": request_id, "unixSeconds": round(now_unix, 3)}
    body = base64.urlsafe_b64encode(json.dumps(claims, separators=(",", ":")).encode())
    return f"{body.decode()}.{signature(key, label + body)}"


def verified_claims(
    keys: Sequence[bytes],
    label: bytes,
    value: str,
    request_id: str,
    path: str,
    now_unix: float,
) -> Verified[dict[str, Any]]:
    """Claims that `signed_claims` was given.

    Raises:
        InvalidSignatureError: it is not signed with these keys, is of another request, or too old.
    """
    body, _, signature_text = value.partition(".")
    if not is_signed(keys, label + body.encode(), signature_text):
        raise InvalidSignatureError("not signed by this service's router")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body))
    if claims.pop("requestId") != request_id:
        raise InvalidSignatureError("signed for another request")
    if abs(now_unix - claims.pop("unixSeconds")) > HEADER_SECONDS:
        raise InvalidSignatureError(f"signed more than {HEADER_SECONDS:.0f} s ago")
    if claims.pop(_PATH, None) != path:
        raise InvalidSignatureError("signed for another path")
    digest = claims.pop(_DIGEST, None)
    if not isinstance(digest, str):
        raise InvalidSignatureError("not signed for a body")
    return Verified(claims, digest)


def refuse_other_body(digests: Mapping[str, str], body: bytes) -> None:
    """Raises InvalidSignatureError for a body that was not signed. `digests`: the signed SHA-256 of
    the body, by header."""
    if not digests:
        return
    body_digest = hashlib.sha256(body).hexdigest().encode()
    for header, digest in digests.items():
        if not hmac.compare_digest(digest.encode(), body_digest):
            raise InvalidSignatureError(f"{header}: signed for another body")


def is_signed(keys: Sequence[bytes], message: bytes, signature_text: str) -> bool:
    """Whether `signature_text` is the signature of a message with one of the keys."""
    return any(
        hmac.compare_digest(signature_text.encode(), signature(key, message).encode())
        for key in keys
    )


def signature(key: bytes, message: bytes) -> str:
    """HMAC-SHA256 in hexadecimal. Each kind of message begins with its own label, so that no
    signature fits another kind."""
    return hmac.digest(key, message, "sha256").hex()
