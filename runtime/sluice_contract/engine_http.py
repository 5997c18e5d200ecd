"""What the router relies on in an engine's HTTP, beyond OpenAI's: ids, a code, a time limit.

Pure values; knows no server and no client.
"""

from __future__ import annotations

import re
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
_ACCEPTABLE_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

ROUTING_KEY_HEADER: Final = "X-Sluice-Routing-Key"
"""The request's tenant, session or adapter, for scheduling policies that use it."""
_ACCEPTABLE_ROUTING_KEY: Final = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")

IGNORED_FIELDS_HEADER: Final = "X-Sluice-Ignored-Fields"
"""Of an answer: the fields of the request that no one read."""

CLIENT_REQUEST_ID_HEADER: Final = "X-Sluice-Client-Request-Id"
"""Of an answer: the `request_id` in the request's body."""

ENGINE_DIED: Final = "engine_died"
"""Error code of a 503: the engine process ended while it had the request, perhaps because of it."""

GRAMMAR_UNAVAILABLE: Final = "grammar_unavailable"
"""Error code of a 503: the engine is healthy, but could not compile the request's grammar, or could
not follow it beside others, perhaps because of the grammar."""

OUT_OF_MEMORY: Final = "out_of_memory"
"""Error code of a 503: the engine is healthy, but a step with the request ran out of memory,
perhaps because of the request."""

UNAVAILABLE: Final = "unavailable"
"""Error code of a 503, or of an event that ends a stream: the engine drains or is not ready."""

IDLE_CONNECTION_SECONDS: Final = 75
"""How long an engine keeps an idle connection."""


def is_acceptable_request_id(given: str) -> bool:
    """Whether a client's id is harmless in headers and logs."""
    return _ACCEPTABLE_REQUEST_ID.fullmatch(given) is not None


def is_acceptable_routing_key(given: str) -> bool:
    """Whether a routing key has the characters and the length that engines take."""
    return _ACCEPTABLE_ROUTING_KEY.fullmatch(given) is not None
