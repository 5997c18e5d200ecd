"""Heads of HTTP requests and responses: names of our headers, their harmless values, and limits on
the size of heads and on the time that heads and bodies may take."""

from __future__ import annotations

import re
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"

_ACCEPTABLE_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

ROUTING_KEY_HEADER: Final = "X-Sluice-Routing-Key"
"""The request's tenant, session or adapter, for scheduling policies that use it."""

_ACCEPTABLE_ROUTING_KEY: Final = re.compile(r"[A-Za-z0-9._:/@-]{1,128}")

IGNORED_FIELDS_HEADER: Final = "X-Sluice-Ignored-Fields"
"""Header of an answer: the fields of the request that were ignored."""

CLIENT_REQUEST_ID_HEADER: Final = "X-Sluice-Client-Request-Id"
"""Header of an answer: the `request_id` in the request's body."""


def is_acceptable_request_id(request_id: str) -> bool:
    """Whether a client's id is harmless in headers and logs."""
    return _ACCEPTABLE_REQUEST_ID.fullmatch(request_id) is not None


def is_acceptable_routing_key(routing_key: str) -> bool:
    """Whether a routing key has the characters and the length that engines take."""
    return _ACCEPTABLE_ROUTING_KEY.fullmatch(routing_key) is not None


MAX_HEADERS: Final = 64

MAX_HEADER_BYTES: Final = 8190
"""Most bytes of one header, its name included, and of the request's target."""

MAX_HEAD_BYTES: Final = 131_072
"""Most bytes of target and headers in all, and of a chunked body's trailers."""

HEAD_SECONDS: Final = 60.0
"""Longest time from a connection's start, or a request's first byte, to the end of its head."""

BODY_SECONDS: Final = 60.0
"""Longest time that a body may take to arrive."""

IDLE_CONNECTION_SECONDS: Final = 75
"""How long an engine keeps an idle connection."""
