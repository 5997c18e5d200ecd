"""RouterConfig: everything that decides how a service's router behaves, as one frozen value.

The operator renders it into a ConfigMap; `python -m sluice_router --config FILE` reads it. Identity
(pod address, namespace) is not in here: it comes from the Downward API.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from sluice_contract.base import (
    ConfigError,
    ContractModel,
    config_error_from,
    refuse_repeated_keys,
)
from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import Role
from sluice_contract.config.cors import Cors
from sluice_contract.config.tracing import RouterTracing

EngineUrl = Annotated[str, StringConstraints(pattern=r"^http://[^/?#@\s]+$", max_length=512)]


MAX_PRIORITY: Final = 1_000_000
"""Largest absolute priority; a larger priority is more urgent."""
MAX_TENANTS: Final = 256
"""Most tenants in a list."""
TenantName = Annotated[
    str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)
]
"""A key of a Secret."""


class Tenant(ContractModel):
    """Which priorities the requests of one tenant have."""

    name: str = Field(
        min_length=1, max_length=255, description="The tenant's: the name of its key's file."
    )

    default_priority: int | None = Field(
        default=None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Priority of a request that names none; left out: 0, or maxPriority if that is "
        "less.",
    )
    max_priority: int | None = Field(
        default=None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="The highest that a request may ask for; left out: any.",
    )

    @model_validator(mode="after")
    def _default_is_allowed(self) -> Self:
        default, most = self.default_priority, self.max_priority
        if default is not None and most is not None and default > most:
            raise ValueError("defaultPriority at most maxPriority")
        return self


class Discovery(ContractModel):
    """How the router finds engines: by the EndpointSlices of the Services `SERVICE-ROLE`."""

    service: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=63,
        description="Name of the InferenceService.",
    )
    roles: tuple[Role, ...] = Field(
        default=(Role.MIXED,), min_length=1, description="Roles of the pools that serve it."
    )
    port_name: str = Field(
        default="http", min_length=1, max_length=15, description="Name of the engines' port."
    )


class RouterServer(ContractModel):
    """Where the router listens, its limits, and how it drains."""

    host: str | None = Field(
        default=None,
        min_length=1,
        description="Address to listen on. Left out: POD_IP and the pod's loopback; without a "
        "POD_IP 127.0.0.1.",
    )
    port: int = Field(
        default=ports.ROUTER_HTTP, ge=0, le=65535, description="Port; 0 picks a free one."
    )
    metrics_port: int = Field(
        default=ports.ROUTER_METRICS,
        ge=0,
        le=65535,
        description="Port of /metrics, /load and the probes, which clients do not reach; 0 picks a "
        "free one.",
    )
    drain_seconds: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="How long requests may still run after SIGTERM and the lame-duck time, in "
        "seconds; what is left then ends with an error.",
    )
    lame_duck_seconds: float = Field(
        default=3.0,
        ge=0,
        le=300,
        description="Seconds that the router keeps running after SIGTERM, while the cluster stops "
        "sending connections here. Later a connection that was quiet for as long is closed.",
    )
    max_body_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1024,
        description="Largest request body that is read, in bytes; a larger one is answered 413.",
    )
    max_requests: int = Field(
        default=1024,
        ge=1,
        description="Maximum requests that wait or are answered at once; a request counts from the "
        "end of its body on. Further ones get a 429. With auth, the last quarter is for tenants "
        "below their share.",
    )
    max_buffered_bytes: int = Field(
        default=512 * 1024 * 1024 * 3 // 8,
        ge=64 * 1024,
        description="Bytes of request heads and bodies that are held at once, in all: each until "
        "an engine begins to answer. What is beyond is answered 429. An eighth is for heads; of "
        "the rest a quarter is kept for requests of at most 64 KiB. The operator sets three "
        "eighths of the memory limit; the default is that of 512 MiB.",
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Maximum connections of clients. For a further one another is closed: first "
        "one that only waits for its client to read an answer or to end a refused body, then the "
        "one that has waited longest for a request. With auth, the last choice is one of the "
        "tenant that is sending most bodies.",
    )


def max_buffered_bytes(memory_limit_bytes: int) -> int:
    """`server.maxBufferedBytes` for a container with this memory limit: three eighths of it.

    With 512 MiB, the process takes 55 MiB, 1024 streams 28 and 4096 connections 60. The rest is for
    parts of arriving bodies in the kernel and the HTTP library.
    """
    return max(1024 * 1024, memory_limit_bytes * 3 // 8)


class Upstream(ContractModel):
    """Timeouts and attempts of requests to engines."""

    connect_timeout_seconds: float = Field(
        default=2.0,
        gt=0,
        le=300,
        description="Limit for opening a connection to an engine, in seconds.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=16,
        description="Engines one request may be offered to, as far as the budget for retries goes.",
    )
    wait_for_engine_seconds: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="How long a request waits for a usable engine before it is answered 503, in "
        "seconds.",
    )
    request_timeout_seconds: float = Field(
        default=3600.0,
        gt=0,
        le=86_400,
        description="Limit for one request, first byte to last, in seconds.",
    )


class LoadFollowing(ContractModel):
    """How the engines' load reports are read."""

    interval_seconds: float = Field(
        default=1.0, gt=0, le=60, description="Pause between two reports of one engine, in seconds."
    )
    timeout_seconds: float = Field(
        default=1.0, gt=0, le=60, description="Limit for one report to arrive, in seconds."
    )
    stale_seconds: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="Age from which a report counts as unknown, in seconds.",
    )


class Auth(ContractModel):
    """Who may send requests."""

    keys_directory: str = Field(
        min_length=1,
        max_length=4096,
        description="Folder with a file for each tenant: its name is the tenant's, its content the "
        "API key. Read again when a file changes. Without a file every request is answered 401.",
    )
    tenants: tuple[Tenant, ...] | None = Field(
        default=None,
        max_length=MAX_TENANTS,
        description="Priorities of tenants. One that is not in it has priority 0 and may ask for "
        "none above; left out: every tenant may ask for any. Requires handoverKeyFile.",
    )

    @model_validator(mode="after")
    def _each_tenant_once(self) -> Self:
        names = [tenant.name for tenant in self.tenants or ()]
        if len(set(names)) < len(names):
            raise ValueError("in tenants each name once")
        return self

    def tenant(self, name: str) -> Tenant:
        """Settings for the requests of one tenant."""
        if self.tenants is None:
            return Tenant(name=name)
        unlisted = Tenant(name=name, max_priority=0)
        return next((tenant for tenant in self.tenants if tenant.name == name), unlisted)


class RouterConfig(ContractModel):
    """The router's file. Engines come from `discovery` or from `engines`, never from both."""

    discovery: Discovery | None = None
    engines: tuple[EngineUrl, ...] | None = Field(
        default=None, min_length=1, description="Base URLs of engines, when there is no cluster."
    )
    prefill_engines: tuple[EngineUrl, ...] | None = Field(
        default=None,
        min_length=1,
        description="Base URLs of prefill engines, when there is no cluster; engines are then the "
        "decode engines.",
    )
    server: RouterServer = RouterServer()
    upstream: Upstream = Upstream()
    load: LoadFollowing = LoadFollowing()
    handover_key_file: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="File with the key that signs what the router tells this service's engines: "
        "which prefill engine a decode engine asks, how to continue an answer that another engine "
        "began, and whose request it is. Read again when it changes. Required with role decode. "
        "Left out, no answer is resumed, and tenants share the prefix cache.",
    )
    auth: Auth | None = Field(
        default=None,
        description="Clients that may send requests. Left out: any client that reaches the router.",
    )
    cors: Cors | None = Field(
        default=None, description="Which web pages may send requests; left out: none."
    )
    page: bool = Field(
        default=True,
        description="Whether `/` is a web page to chat with the model, and `/docs` one that shows "
        "the routes.",
    )
    tracing: RouterTracing | None = Field(
        default=None,
        description="Where spans of requests go, and of which; left out: nowhere.",
    )

    @model_validator(mode="after")
    def _one_source_of_engines(self) -> Self:
        if (self.discovery is None) == (self.engines is None):
            raise ValueError("exactly one of discovery and engines is required")
        if self.prefill_engines is not None and self.engines is None:
            raise ValueError("prefillEngines only beside engines, which then decode")
        if set(self.roles) not in ({Role.MIXED}, {Role.PREFILL, Role.DECODE}):
            raise ValueError("in discovery.roles mixed alone, or prefill and decode")
        if self.auth and self.auth.tenants is not None and self.handover_key_file is None:
            raise ValueError("auth.tenants only beside handoverKeyFile, which signs priorities")
        return self

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles of the pools that serve the service."""
        if self.discovery is not None:
            return self.discovery.roles
        return (Role.MIXED,) if self.prefill_engines is None else (Role.PREFILL, Role.DECODE)


def parse_router_config(text: str | bytes) -> RouterConfig:
    """A RouterConfig from JSON text.

    Raises:
        ConfigError: one line with key, value and what is allowed.
    """
    try:
        config = RouterConfig.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise config_error_from(error, RouterConfig) from None
    refuse_repeated_keys(text)
    return config


def read_router_config(path: Path) -> RouterConfig:
    """The RouterConfig in the file at `path`; raises ConfigError, also if the file is missing."""
    try:
        return parse_router_config(path.read_bytes())
    except OSError as error:
        raise ConfigError("--config", str(path), f"a readable file ({error.strerror})") from None


def render_router_config(config: RouterConfig) -> str:
    """The file's text: sorted keys, so that equal configurations have equal hashes."""
    return json.dumps(config.to_json_dict(), indent=2, sort_keys=True) + "\n"
