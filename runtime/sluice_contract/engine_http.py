"""What the router relies on in an engine's HTTP, beyond OpenAI's: ids, a code, a time limit.

Pure values; knows no server and no client.
"""

from __future__ import annotations

import re
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
_ACCEPTABLE_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

ROUTING_KEY_HEADER: Final = "X-Sluice-Routing-Key"
"""Whose request it is (a tenant, a session, an adapter), for the policies that ask."""
_ACCEPTABLE_ROUTING_KEY: Final = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")

ENGINE_DIED: Final = "engine_died"
"""Error code of a 503: the engine had the request when it went, perhaps because of the request."""

GRAMMAR_UNAVAILABLE: Final = "grammar_unavailable"
"""Error code of a 503: the engine is well, and could not compile the form that the answer must
have, or not follow it beside others, perhaps because of the form."""

IDLE_CONNECTION_SECONDS: Final = 75
"""How long an engine keeps a connection on which nothing is asked."""


def is_acceptable_request_id(given: str) -> bool:
    """Whether a client's id is harmless in headers and logs."""
    return _ACCEPTABLE_REQUEST_ID.fullmatch(given) is not None


def is_acceptable_routing_key(given: str) -> bool:
    """Whether a routing key has the characters and the length that engines take."""
    return _ACCEPTABLE_ROUTING_KEY.fullmatch(given) is not None
