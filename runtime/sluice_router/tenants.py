"""What tenants have of a router, and what engines are told of them, signed: bounds of a request's
priority, and a salt for the prefix cache. Knows neither API keys nor connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluice_contract.config.router import Auth
from sluice_contract.wire.handover import Bound, Keys
from sluice_contract.wire.tenants import claims_of, signed_tenant

SignTenant = Callable[[str, str, Bound | None], str]
"""Value of `TENANT_HEADER` for a tenant's request with an id, for a path and a body."""
RESERVE: Final = 0.25
"""Share of a capacity that is for tenants below their share."""


class Shares:
    """What each tenant holds of one capacity, in requests or in bytes. Of its last quarter only a
    tenant below its share gets any, so that such a tenant is never refused because of another
    tenant's requests until others below their share have filled that reserve.

    A share is the capacity, divided by the tenants that hold some of it and one that may come.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def held(self, tenant: str) -> int:
        """What the tenant holds."""
        return self._held.get(tenant, 0)

    def share(self, capacity: float) -> int:
        """What a tenant may hold whatever others do; at least 1."""
        return max(1, int(capacity) // (len(self._held) + 1))

    def limit(self, tenant: str | None, coming: int, capacity: float) -> float:
        """How much may be held in all once the tenant has taken `coming` more. Who is no tenant
        has the whole capacity."""
        if tenant is None or self.held(tenant) + coming <= self.share(capacity):
            return capacity
        return capacity * (1 - RESERVE)

    def add(self, tenant: str | None, count: int) -> None:
        """The tenant holds so much more; less, where it is negative."""
        if tenant is None:
            return
        held = self.held(tenant) + count
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)


def tenant_signer(keys: Keys, auth: Auth, unix_clock: Callable[[], float]) -> SignTenant:
    """Signs with the service's key."""

    def sign(tenant: str, request_id: str, bound: Bound | None) -> str:
        key = keys()[0]
        claims = claims_of(key, auth.tenant(tenant))
        return signed_tenant(key, claims, request_id, unix_clock(), bound)

    return sign
