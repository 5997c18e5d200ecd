"""What holds for the tenant of a request: the bounds of its priority, and its part of the prefix
cache.

Knows no route, no API key and no signature.
"""

from __future__ import annotations

from typing import TypeVar

from sluice_contract.wire.tenants import TenantClaims

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.common_fields import AnsweredRequest

RequestT = TypeVar("RequestT", bound=AnsweredRequest)


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
