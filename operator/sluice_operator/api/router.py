"""The router section of an InferenceService: its front door, and who may come in."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field
from sluice_contract.config.cors import Cors
from sluice_contract.config.router import MAX_PRIORITY, MAX_TENANTS, TenantName

from sluice_operator.api.base import (
    CRD_DEFAULT,
    ApiModel,
    Image,
    LocalRef,
    Resources,
    Rule,
    left_out,
    list_map,
)
from sluice_operator.api.route import InferencePoolSpec, RouteSpec
from sluice_operator.api.template import RouterTemplate

ROUTER_REPLICAS: Final = 2


class TenantSpec(ApiModel):
    """Priorities of one tenant's requests."""

    name: TenantName = Field(description="Name of the tenant: that of its key in the Secret.")

    default_priority: int | None = Field(
        default=None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        json_schema_extra=left_out("0, or maxPriority if that is less"),
        description="Priority of a request that names none.",
    )
    max_priority: int | None = Field(
        default=None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        json_schema_extra=left_out("any"),
        description="The highest that a request may ask for; a higher one is refused.",
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.defaultPriority) || !has(self.maxPriority) || "
            "self.defaultPriority <= self.maxPriority",
            lambda t: (
                t.default_priority is None
                or t.max_priority is None
                or t.default_priority <= t.max_priority
            ),
            "defaultPriority at most maxPriority",
            "defaultPriority",
        ),
    )


class RouterAuth(ApiModel):
    """Who may send requests."""

    secret_ref: LocalRef = Field(
        description="Secret whose values are the accepted API keys, each under the name of its "
        "tenant. Routers follow its changes."
    )
    tenants: list[TenantSpec] | None = Field(
        default=None,
        max_length=MAX_TENANTS,
        json_schema_extra=list_map("name"),
        description="Priorities by tenant, read by schedulingPolicy priority and adaptive. A "
        "tenant that is not listed has priority 0, and may ask for no higher one; left out: every "
        "tenant may ask for any.",
    )


class RouterCors(Cors, ApiModel):
    """Which web pages may send requests."""


class RouterSpec(ApiModel):
    """The front door of the service."""

    replicas: int = Field(
        default=ROUTER_REPLICAS,
        ge=1,
        le=100,
        json_schema_extra=CRD_DEFAULT,
        description="Number of routers.",
    )
    image: Image | None = Field(
        default=None, description="Router image; the one of the operator's release when left out."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of one router's container."
    )
    template: RouterTemplate | None = Field(
        default=None,
        description="Additions to the routers' pods. Where they are left out, imagePullSecrets and "
        "tolerations come from all pools' templates, and priorityClassName if all have the same.",
    )
    auth: RouterAuth | None = Field(
        default=None, description="Who may send requests; left out: anyone who reaches the router."
    )
    cors: RouterCors | None = Field(
        default=None, description="Which web pages may send requests; left out: none."
    )
    page: bool | None = Field(
        default=None,
        description="Whether `/` is a web page to chat with the model, and `/docs` one that shows "
        "the routes; left out: true.",
    )
    route: RouteSpec | None = Field(
        default=None,
        description="An HTTPRoute to the service, where the cluster has the Gateway API; left out: "
        "none.",
    )
    inference_pool: InferencePoolSpec | None = Field(
        default=None,
        description="An InferencePool of the routers, to which route then leads; left out: none.",
    )
