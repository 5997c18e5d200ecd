"""The engine's HTTP server: where it listens, and its limits; `server` of the engine's file."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from sluice_contract.base import ContractModel
from sluice_contract.cluster import ports
from sluice_contract.config.cors import Cors

MetricsCompatibility = Literal["vLLM"]
DEFAULT_MAX_CHOICES_PER_REQUEST: Final = 256
"""Default of choices per request: as many as an engine on CPUs runs at once, and as a request may
have prompts."""


class ServerSettings(ContractModel):
    """Where the engine's HTTP server listens, and its limits."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(
        default=ports.ENGINE_HTTP, ge=0, le=65535, description="Port; 0 picks a free one."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of /metrics, /load, /health and /ready, at which nothing can be "
        "generated, flushed or aborted; 0 picks a free one. Left out: `port` answers /metrics.",
    )
    metrics_compatibility: MetricsCompatibility | None = Field(
        default=None, description="Whose names /metrics has beside its own."
    )
    drain_seconds: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="How long running streams may finish after SIGTERM, in seconds.",
    )
    max_body_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1024,
        description="Largest request body that is read, in bytes; a larger one is answered 413.",
    )
    max_choices_per_request: int = Field(
        default=DEFAULT_MAX_CHOICES_PER_REQUEST,
        ge=1,
        le=4096,
        description="Most answers that one request may ask for: n for each of its prompts. A "
        "larger one is answered 400.",
    )
    cors: Cors | None = Field(
        default=None, description="Which web pages may send requests; left out: none."
    )
    require_signature: bool | None = Field(
        default=None,
        description="True: only requests that the service's router has signed are served, others "
        "are answered 403. On a cluster beside router.auth. Requires handoverKeyFile.",
    )

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.metrics_port and self.metrics_port == self.port:
            raise ValueError(f"metricsPort: {self.port} is port; allowed: another, or left out")
        return self
