"""How the router names the prefill engine of a request to the decode engine: a signed header.

A decode engine takes a request only with it, so that no client can make one engine connect to
another. Pure functions; knows no server.
"""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from sluice_contract.base import ConfigError, ContractModel

PREFILL_HEADER: Final = "X-Sluice-Prefill"
"""`BASE64URL(JSON).HEX(HMAC-SHA256)`, from the router to a decode engine."""
HEADER_SECONDS: Final = 60.0
"""How long a header is valid: clocks of nodes may differ by less."""
PREFILL_FAILED: Final = "prefill_failed"
"""Error code of a 503 of a decode engine: the prefill engine failed or refused for now, or pages
did not arrive; another pair may serve the request."""
PREFILL_UNAVAILABLE: Final = "prefill_unavailable"
"""The same, but the prefill engine never took the request: it drains, cannot be reached, or is not
the one that is meant. So the request cannot be at fault."""
MIN_KEY_BYTES: Final = 32
_LABEL: Final = b"sluice prefill header 1\0"


class InvalidSignatureError(Exception):
    """A header or a greeting that nobody with the key has written, or too long ago. The message
    says which, and never shows the value."""


class PrefillRef(ContractModel):
    """One life of one prefill engine: where its bootstrap endpoint is, and its epoch."""

    host: str = Field(min_length=1, max_length=253)
    port: int = Field(ge=1, le=65535)
    epoch: str = Field(min_length=1, max_length=64)
    name: str = Field(max_length=253, default="")
    """The pod's, for messages."""


def read_key(path: Path) -> bytes:
    """The key of a service, from the file that the operator mounts.

    Raises:
        OSError: the file cannot be read.
        ValueError: the key is too short.
    """
    key = path.read_bytes().strip()
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"{path}: {len(key)} bytes; allowed: at least {MIN_KEY_BYTES}")
    return key


def configured_key(path: str | None) -> bytes:
    """The key in the file that `handoverKeyFile` names.

    Raises:
        ConfigError: it names none, or one that cannot be used.
    """
    allowed = f"a readable file with a key of at least {MIN_KEY_BYTES} bytes"
    if path is None:
        raise ConfigError("handoverKeyFile", None, f"{allowed}, with roles prefill and decode")
    try:
        return read_key(Path(path))
    except OSError as error:
        raise ConfigError("handoverKeyFile", path, f"{allowed} ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError("handoverKeyFile", path, f"{allowed} ({error})") from None


def signed_header(key: bytes, prefill: PrefillRef, request_id: str, now_unix: float) -> str:
    """The header's value, good for this request and for `HEADER_SECONDS`."""
    return signed_claims(key, _LABEL, prefill.to_json_dict(), request_id, now_unix)


def verified_header(key: bytes, value: str, request_id: str, now_unix: float) -> PrefillRef:
    """What a router signed for this request.

    Raises:
        InvalidSignatureError: it is not signed with this key, is of another request, or too old.
    """
    try:
        claims = verified_claims(key, _LABEL, value, request_id, now_unix)
        return PrefillRef.model_validate(claims)
    except ValidationError as error:
        says = error.errors()[0]["msg"]
    except InvalidSignatureError as error:
        says = str(error)
    raise InvalidSignatureError(f"{PREFILL_HEADER}: {says}")


def signed_claims(
    key: bytes, label: bytes, claims: dict[str, Any], request_id: str, now_unix: float
) -> str:
    """`BASE64URL(JSON).HEX(HMAC-SHA256)` of claims about one request."""
    claims = claims | {"requestId": request_id, "unixSeconds": round(now_unix, 3)}
    body = base64.urlsafe_b64encode(json.dumps(claims, separators=(",", ":")).encode())
    return f"{body.decode()}.{signature(key, label + body)}"


def verified_claims(
    key: bytes, label: bytes, value: str, request_id: str, now_unix: float
) -> dict[str, Any]:
    """What `signed_claims` was given.

    Raises:
        InvalidSignatureError: it is not signed with this key, is of another request, or too old.
    """
    body, _, given = value.partition(".")
    if not hmac.compare_digest(given.encode(), signature(key, label + body.encode()).encode()):
        raise InvalidSignatureError("not signed by this service's router")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body))
    if claims.pop("requestId") != request_id:
        raise InvalidSignatureError("signed for another request")
    if abs(now_unix - claims.pop("unixSeconds")) > HEADER_SECONDS:
        raise InvalidSignatureError(f"signed more than {HEADER_SECONDS:.0f} s ago")
    return claims


def signature(key: bytes, message: bytes) -> str:
    """HMAC-SHA256 in hexadecimal. Every kind of message begins with a label of its own."""
    return hmac.digest(key, message, "sha256").hex()
