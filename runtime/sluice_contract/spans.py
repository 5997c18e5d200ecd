"""Spans: what one process did for a request, when, and as a part of what.

A span is told once it is over, as a value; `span_export` sends it where a configuration says so.
Only requests whose `traceparent` is sampled have any. Knows neither OpenTelemetry nor a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sluice_contract.base import ContractModel
from sluice_contract.trace import child_of, is_sampled

CollectorUrl = Annotated[
    str, StringConstraints(pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$", max_length=512)
]
SpanKind = Literal["server", "client", "internal"]
Attributes = Mapping[str, str | int | float]


class Tracing(ContractModel):
    """Where spans go."""

    endpoint: CollectorUrl = Field(
        description="Base URL of an OpenTelemetry collector that takes OTLP over HTTP, such as "
        "http://collector:4318; spans of sampled requests go to /v1/traces below it. Requires the "
        "extra `tracing`.",
    )


class RouterTracing(Tracing):
    """Where spans go, and of which requests."""

    sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of requests that are sampled where the client's traceparent does not "
        "say; 0: none, whatever it says. Requests without a valid API key never are, where keys "
        "are asked for.",
    )


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work. Times are of the machine's monotonic clock, in seconds."""

    name: str
    traceparent: str
    """The trace's and its own id."""
    parent: str | None
    """Traceparent of the span it is a part of; None: the trace begins here."""
    start_seconds: float
    end_seconds: float
    kind: SpanKind = "internal"
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None
    """What went wrong, if it did."""


Record = Callable[[Span], None]
"""Takes a span that is over; never waits, never raises."""


def record_part(
    record: Record | None,
    parent: str,
    name: str,
    seconds: tuple[float, float],
    attributes: Attributes,
) -> None:
    """Records a part of the span `parent`, from start to end, if that is sampled and spans are
    wanted."""
    if record is not None and is_sampled(parent):
        record(Span(name, child_of(parent), parent, *seconds, attributes=attributes))
