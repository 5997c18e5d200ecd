"""How a service is reached through a Gateway that many services share."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from sluice_operator.api.base import ATOMIC, ApiModel, DnsLabel, DnsName, left_out

HEADER: Final = "x-model"
HEADER_NAME: Final = "^[A-Za-z0-9-]+$"
HEADER_VALUE: Final = "^[!-~]+$"
_SEGMENT: Final = "/[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
PathPrefix = Annotated[
    str, StringConstraints(pattern=rf"^(/|({_SEGMENT})+)$", min_length=1, max_length=256)
]
Hostname = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        min_length=1,
        max_length=253,
    ),
]

HeaderName = Annotated[str, StringConstraints(pattern=HEADER_NAME, min_length=1, max_length=256)]
HeaderValue = Annotated[str, StringConstraints(pattern=HEADER_VALUE, min_length=1, max_length=4096)]


class GatewayRef(ApiModel):
    """A Gateway, or one of its listeners."""

    name: DnsName = Field(description="Name of the Gateway.")
    namespace: DnsLabel | None = Field(
        default=None,
        json_schema_extra=left_out("that of the service"),
        description="Namespace of the Gateway; its listeners must allow routes of the service's.",
    )
    section_name: DnsName | None = Field(
        default=None,
        json_schema_extra=left_out("every listener that allows it"),
        description="Name of the listener.",
    )


class RouteHeader(ApiModel):
    """A header that says which model a request is for."""

    name: HeaderName = Field(default=HEADER, description="Name of the header.")
    value: HeaderValue | None = Field(
        default=None,
        json_schema_extra=left_out("the name of the service"),
        description="Value that the header must have, exactly.",
    )


class RouteSpec(ApiModel):
    """An HTTPRoute to the service."""

    parent_refs: list[GatewayRef] = Field(
        min_length=1,
        max_length=8,
        json_schema_extra=ATOMIC,
        description="Gateways that lead to the service.",
    )
    hostnames: list[Hostname] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="Hosts whose requests go to the service; left out: those of the listeners.",
    )
    path: PathPrefix | None = Field(
        default=None,
        json_schema_extra=left_out("/ and the name of the service; with a header /"),
        description="Path prefix of requests that go to the service. It is removed before the "
        "routers see the path: with /chat, clients call /chat/v1/completions.",
    )
    header: RouteHeader | None = Field(
        default=None,
        description="Only requests with this header; {} is x-model: NAME.",
    )

    def prefix(self, service: str) -> str:
        """The path that requests must begin with."""
        return self.path or ("/" if self.header else f"/{service}")


class EndpointPickerRef(ApiModel):
    """An endpoint picker: the process that a Gateway asks which pod a request goes to."""

    name: DnsName = Field(description="Name of its Service.")
    port: int = Field(ge=1, le=65535, description="Port of that Service.")
    failure_mode: Literal["FailOpen", "FailClose"] | None = Field(
        default=None,
        json_schema_extra=left_out("FailOpen, as every router can answer"),
        description="Where requests go while the picker is silent: to any router, or to none.",
    )


class InferencePoolSpec(ApiModel):
    """An InferencePool of the service's routers. The kind's v1 requires a picker."""

    endpoint_picker_ref: EndpointPickerRef = Field(
        description="Your endpoint picker, in the namespace of the service."
    )
