"""Signed header in which the router tells an engine about the tenant of a request.

Its salt separates the cached prefixes of tenants; its bounds limit the priorities of their
requests. The salt is derived from the service's key, so no client can guess it. Engines get neither
the tenant's API key nor its name; only the router's spans carry the name. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import Field, ValidationError

from sluice_contract.base import ContractModel
from sluice_contract.config.router import MAX_PRIORITY, Tenant
from sluice_contract.wire.handover import (
    Bound,
    InvalidSignatureError,
    Verified,
    signature,
    signed_claims,
    verified_claims,
)

TENANT_HEADER: Final = "X-Sluice-Tenant"
"""`BASE64URL(JSON).HEX(HMAC-SHA256)`, from the router to the engine that answers."""
_HEADER_LABEL: Final = b"sluice tenant header 1\0"
_SALT_LABEL: Final = b"sluice tenant salt 1\0"
_SALT_CHARACTERS: Final = 32


class TenantClaims(ContractModel):
    """Claims about a request of one tenant."""

    salt: str = Field(min_length=_SALT_CHARACTERS, max_length=_SALT_CHARACTERS)
    default_priority: int = Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    max_priority: int = Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)


def claims_of(key: bytes, tenant: Tenant) -> TenantClaims:
    """Claims that engines get about a tenant. The salt changes only with the signing key."""
    most = MAX_PRIORITY if tenant.max_priority is None else tenant.max_priority
    default = tenant.default_priority
    return TenantClaims(
        salt=signature(key, _SALT_LABEL + tenant.name.encode())[:_SALT_CHARACTERS],
        default_priority=min(0, most) if default is None else default,
        max_priority=most,
    )


def signed_tenant(
    key: bytes, claims: TenantClaims, request_id: str, now_unix: float, bound: Bound
) -> str:
    """The header's value, valid for this request for `handover.HEADER_SECONDS`."""
    return signed_claims(key, _HEADER_LABEL, claims.to_json_dict(), request_id, now_unix, bound)


def verified_tenant(
    keys: Sequence[bytes], value: str, request_id: str, path: str, now_unix: float
) -> Verified[TenantClaims]:
    """Claims that a router signed for this request.

    Raises:
        InvalidSignatureError: it is not signed with these keys, is of another request, or too old.
    """
    try:
        claims, digest = verified_claims(keys, _HEADER_LABEL, value, request_id, path, now_unix)
        return Verified(TenantClaims.model_validate(claims), digest)
    except ValidationError as error:
        says = error.errors()[0]["msg"]
    except InvalidSignatureError as error:
        says = str(error)
    raise InvalidSignatureError(f"{TENANT_HEADER}: {says}")
