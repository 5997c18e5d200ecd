"""Signs for engines which tenant a request is of: bounds of its priority, and a salt for the prefix
cache. Knows neither API keys nor connections.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice_contract.router_config import Auth
from sluice_contract.tenants import claims_of, signed_tenant

SignTenant = Callable[[str, str], str]
"""Value of `TENANT_HEADER` for a tenant's request with an id."""


def tenant_signer(key: bytes, auth: Auth, unix_clock: Callable[[], float]) -> SignTenant:
    """Signs with the service's key."""

    def sign(tenant: str, request_id: str) -> str:
        claims = claims_of(key, auth.tenant(tenant))
        return signed_tenant(key, claims, request_id, unix_clock())

    return sign
