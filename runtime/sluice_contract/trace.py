"""W3C trace context: the header by which a request's lines in the logs of all processes are found.

A request keeps the trace of its client, and gets one from the router if it has none. What is
recorded of it: `spans`. Knows nobody who collects them.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

TRACEPARENT_HEADER: Final = "Traceparent"
TRACESTATE_HEADER: Final = "Tracestate"
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED: Final = 1


def trace_id(traceparent: str | None) -> str | None:
    """32 hexadecimal digits; None if the header is missing or not as W3C wants it."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return found[1] if found else None


def new_traceparent(*, sampled: bool = False) -> str:
    """Of a trace that begins here; `sampled`: whether its spans are recorded."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{int(sampled):02x}"


def child_of(traceparent: str) -> str:
    """A part of the span with this traceparent, sampled if that is."""
    version, trace, _, flags = traceparent.split("-")
    return f"{version}-{trace}-{secrets.token_hex(8)}-{flags}"


def unsampled(traceparent: str) -> str:
    """The same span, not to be recorded."""
    head, _, flags = traceparent.rpartition("-")
    return f"{head}-{int(flags, 16) & ~_SAMPLED:02x}"


def is_sampled(traceparent: str) -> bool:
    """Whether its spans are recorded; not if it is no traceparent."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found is not None and bool(int(found[3], 16) & _SAMPLED)


def ids_of(traceparent: str) -> tuple[int, int]:
    """The numbers of trace and span.

    Raises:
        ValueError: it is no traceparent.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        raise ValueError(f"{traceparent!r} is no traceparent")
    return int(found[1], 16), int(found[2], 16)
