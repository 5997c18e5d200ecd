"""W3C trace context: the header by which a request's lines in the logs of all processes are found.

A request keeps the trace of its client, and gets one from the router if it has none. Knows neither
spans nor who collects them.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

TRACEPARENT_HEADER: Final = "Traceparent"
TRACESTATE_HEADER: Final = "Tracestate"
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def trace_id(traceparent: str | None) -> str | None:
    """32 hexadecimal digits; None if the header is missing or not as W3C wants it."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return found[1] if found else None


def new_traceparent() -> str:
    """Of a trace that begins here and that nobody samples."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"
