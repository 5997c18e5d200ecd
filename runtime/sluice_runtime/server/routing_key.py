"""The header that says whose request it is: a tenant, a session or an adapter.

A proxy that knows the caller can set it without touching the body. The engine's policies
round-robin and routing-key read it; others do not.
"""

from __future__ import annotations

from fastapi import Request
from sluice_contract.engine_http import ROUTING_KEY_HEADER, is_acceptable_routing_key
from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import InvalidRequestError


def routing_key_of(request: Request) -> str:
    """The request's routing key; empty when it has none.

    Raises:
        InvalidRequestError: it is too long, or not of the characters allowed.
    """
    given = request.headers.get(ROUTING_KEY_HEADER, "")
    if given and not is_acceptable_routing_key(given):
        raise InvalidRequestError(
            f"{ROUTING_KEY_HEADER}: {shown_json(given)} is not allowed; allowed: 1 to 128 letters, "
            "digits and the characters - _ . : / @",
            ROUTING_KEY_HEADER,
        )
    return given
