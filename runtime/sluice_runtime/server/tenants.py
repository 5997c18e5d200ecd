"""Whose request it is, as the router signs it: the bounds of its priority, and its part of the
prefix cache.

Knows no route and no API key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from sluice_contract.handover import InvalidSignatureError
from sluice_contract.http_errors import Mistake
from sluice_contract.tenants import TENANT_HEADER, TenantClaims, verified_tenant

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.protocol import GenerationRequest
from sluice_runtime.server.role import INVALID_SIGNATURE

RequestT = TypeVar("RequestT", bound=GenerationRequest)


@dataclass(frozen=True)
class TenantCheck:
    """Knows tenants by the router's signature. `key`: None, and there are none."""

    unix_clock: Callable[[], float]
    key: bytes | None = None

    def tenant_of(self, request: Request) -> TenantClaims | None:
        """What holds for the tenant of a request; None: the router names none.

        Raises:
            MistakenError: 403, the header is not of this service's router.
        """
        value = request.headers.get(TENANT_HEADER)
        if value is None:
            return None
        if self.key is None:
            message = f"{TENANT_HEADER}: not allowed; allowed: with handoverKeyFile"
            raise MistakenError(Mistake(403, INVALID_SIGNATURE, message))
        try:
            now = self.unix_clock()
            return verified_tenant(self.key, value, request.state.request_id, now)
        except InvalidSignatureError as error:
            raise MistakenError(Mistake(403, INVALID_SIGNATURE, str(error))) from None


def of_tenant(asked: RequestT, tenant: TenantClaims | None) -> RequestT:
    """The request with its tenant's priority, and cached prefixes that only this tenant shares; a
    salt of the client's own parts them further.

    Raises:
        InvalidRequestError: it asks for a higher priority than its tenant may.
    """
    if tenant is None:
        return asked
    priority, most = asked.priority, tenant.max_priority
    if priority is not None and priority > most:
        raise InvalidRequestError(
            f"priority: {priority} is not allowed; allowed: at most {most} with this API key",
            "priority",
        )
    update = {
        "priority": tenant.default_priority if priority is None else priority,
        "cache_salt": tenant.salt + (asked.cache_salt or ""),
    }
    return asked.model_copy(update=update)
