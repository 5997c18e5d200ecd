"""Trace spans: each is a piece of work that a process did for a request, with its times and its
parent.

A finished span is a value; `span_export` sends it if configured. Only requests with a sampled
`traceparent` have spans.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

SpanKind = Literal["server", "client", "internal"]
AttributeValue = str | int | float | tuple[str, ...]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work. Times are seconds of the machine's monotonic clock."""

    name: str
    traceparent: str
    """W3C traceparent with the trace's id and the span's own id."""
    parent: str | None
    """Traceparent of the parent span; None: the trace begins here."""
    start_seconds: float
    end_seconds: float
    kind: SpanKind = "internal"
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    """Error message if the work failed."""


Record = Callable[[Span], None]
"""Function that takes a finished span; never waits, never raises."""


def record_part(
    record: Record | None,
    parent: str,
    name: str,
    seconds: tuple[float, float],
    attributes: Attributes,
) -> None:
    """Records a child of the span `parent`, if the trace is sampled and there is a recorder.
    seconds: start and end."""
    if record is not None and is_sampled(parent):
        record(Span(name, child_of(parent), parent, *seconds, attributes=attributes))


TRACEPARENT_HEADER: Final = "Traceparent"
TRACESTATE_HEADER: Final = "Tracestate"
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED: Final = 1


def trace_id(traceparent: str | None) -> str | None:
    """Trace id of a traceparent, 32 hexadecimal digits; None if the header is missing or not
    W3C-conformant."""
    match = _TRACEPARENT.fullmatch(traceparent or "")
    return match[1] if match else None


def new_traceparent(*, sampled: bool = False) -> str:
    """Traceparent of a trace that begins here; `sampled`: whether its spans are recorded."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{int(sampled):02x}"


def child_of(traceparent: str) -> str:
    """Traceparent of a new child of the span `traceparent`; sampled if the parent is."""
    version, trace, _, flags = traceparent.split("-")
    return f"{version}-{trace}-{secrets.token_hex(8)}-{flags}"


def unsampled(traceparent: str) -> str:
    """The traceparent with its sampled flag cleared, so that no one records its spans."""
    head, _, flags = traceparent.rpartition("-")
    return f"{head}-{int(flags, 16) & ~_SAMPLED:02x}"


def is_sampled(traceparent: str) -> bool:
    """Whether spans of the traceparent are recorded; False if it is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match is not None and bool(int(match[3], 16) & _SAMPLED)


def ids_of(traceparent: str) -> tuple[int, int]:
    """Ids of trace and span, as numbers.

    Raises:
        ValueError: the text is not a valid traceparent.
    """
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        raise ValueError(f"{traceparent!r} is no traceparent")
    return int(match[1], 16), int(match[2], 16)
