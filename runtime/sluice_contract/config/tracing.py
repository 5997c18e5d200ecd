"""Where router and engine send spans of sampled requests; one setting for both."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from sluice_contract.base import ContractModel

CollectorUrl = Annotated[
    str, StringConstraints(pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$", max_length=512)
]


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
