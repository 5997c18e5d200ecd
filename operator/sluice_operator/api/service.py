"""InferenceService: what a user asks for, field by field.

The whole v1alpha1 shape, including what `validation/errors.py` still refuses.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, Literal

from pydantic import Field
from sluice_contract.cluster.labels import Role
from sluice_contract.config.cors import Cors
from sluice_contract.config.host_cache import HostCache
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.config.router import MAX_PRIORITY, MAX_TENANTS, TenantName
from sluice_contract.config.speculation import SpeculationSettings

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
from sluice_operator.api.engine import DRAIN_SECONDS, STARTUP_SECONDS, EngineSpec, ModelSpec
from sluice_operator.api.pools import (
    MAX_REPLICAS,
    AcceleratorSpec,
    PoolAutoscaling,
    Pools,
    PoolSpec,
)
from sluice_operator.api.route import InferencePoolSpec, RouteSpec
from sluice_operator.api.scaling import (
    AutoscalingSpec,
    MetricsSpec,
    RolloutSpec,
    Slo,
    TracingSpec,
)

MAX_NAME: Final = 40
"""The longest derived name is NAME-prefill-<10 digits of a hash>, and must fit a DNS label."""
ROUTER_REPLICAS: Final = 2


class Tenant(ApiModel):
    """Which priorities the requests of one tenant have."""

    name: TenantName = Field(description="The tenant's: the name of its key in the Secret.")

    default_priority: int | None = Field(
        default=None,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        json_schema_extra=left_out("0, or maxPriority if that is less"),
        description="Of a request that asks for none.",
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
    tenants: list[Tenant] | None = Field(
        default=None,
        max_length=MAX_TENANTS,
        json_schema_extra=list_map("name"),
        description="Priorities by tenant, read by schedulingPolicy priority and adaptive. One "
        "that is not in it has priority 0 and may ask for none above; left out: every tenant may "
        "ask for any.",
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
    auth: RouterAuth | None = Field(
        default=None, description="Who may send requests; left out: whoever reaches the router."
    )
    cors: RouterCors | None = Field(
        default=None, description="Which web pages may send requests; left out: none."
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


class InferenceServiceSpec(ApiModel):
    """A model and the fleet of engines that serves it."""

    model: ModelSpec = Field(description="Which weights to serve, and under what name.")
    mode: Literal["Mixed", "Disaggregated"] = Field(
        default="Mixed",
        json_schema_extra=CRD_DEFAULT,
        description="Mixed: every engine does prefill and decode. Disaggregated: a pool for each.",
    )
    slo: Slo | None = Field(
        default=None, description="The latency promise that scheduling and scaling work towards."
    )
    engine: EngineSpec | None = Field(
        default=None, description="Settings of the engines; each is resolved when left out."
    )
    pools: Pools | None = Field(
        default=None,
        description="The pools of engines. Left out in mode Mixed: one engine on CPUs; in mode "
        "Disaggregated: one in each pool, or with autoscaling.gpuBudget as many as the load asks.",
    )
    autoscaling: AutoscalingSpec | None = Field(
        default=None, description="How the pools with an autoscaling section move together."
    )
    rollout: RolloutSpec | None = Field(
        default=None, description="How a new revision replaces the old one."
    )
    router: RouterSpec | None = Field(default=None, description="The front door of the service.")
    tracing: TracingSpec | None = Field(
        default=None, description="Where spans of requests go; left out: nowhere."
    )
    metrics: MetricsSpec | None = Field(
        default=None, description="What engines report to Prometheus beside their own metrics."
    )
    paused: bool = Field(
        default=False,
        json_schema_extra=CRD_DEFAULT,
        description="True: the operator writes nothing but status.",
    )

    RULES: ClassVar = (
        Rule(
            "self.mode != 'Mixed' || !has(self.pools) || "
            "!(has(self.pools.prefill) || has(self.pools.decode))",
            lambda s: (
                s.mode != "Mixed"
                or s.pools is None
                or (s.pools.prefill is None and s.pools.decode is None)
            ),
            "only the pool mixed in mode Mixed, which counts where mode is left out; for the pools "
            "prefill and decode write mode: Disaggregated",
            "pools",
        ),
        Rule(
            "self.mode != 'Disaggregated' || !has(self.pools) || !has(self.pools.mixed)",
            lambda s: s.mode != "Disaggregated" or s.pools is None or s.pools.mixed is None,
            "only the pools prefill and decode in mode Disaggregated, which are scaled by "
            "spec.pools.prefill.replicas and spec.pools.decode.replicas",
            "pools",
        ),
        Rule(
            "self.mode != 'Disaggregated' || !has(self.pools) || "
            "has(self.pools.prefill) == has(self.pools.decode)",
            lambda s: (
                s.mode != "Disaggregated"
                or s.pools is None
                or (s.pools.prefill is None) == (s.pools.decode is None)
            ),
            "both prefill and decode in mode Disaggregated, or neither",
            "pools",
        ),
        Rule(
            "self.mode != 'Mixed' || !has(self.engine) || !has(self.engine.kvTransfer)",
            lambda s: s.mode != "Mixed" or s.engine is None or s.engine.kv_transfer is None,
            "no kvTransfer in mode Mixed",
            "engine",
        ),
        Rule(
            "!has(self.autoscaling) || !has(self.autoscaling.accelerator) || "
            "(self.mode == 'Disaggregated' && has(self.autoscaling.gpuBudget) && "
            "(!has(self.pools) || !(has(self.pools.prefill) || has(self.pools.decode))))",
            lambda s: (
                s.autoscaling is None
                or s.autoscaling.accelerator is None
                or (
                    s.mode == "Disaggregated"
                    and s.autoscaling.gpu_budget is not None
                    and (s.pools is None or (s.pools.prefill is None and s.pools.decode is None))
                )
            ),
            "accelerator only in mode Disaggregated, with gpuBudget and without pools, which have "
            "their own",
            "autoscaling",
        ),
        Rule(
            "self.mode != 'Mixed' || !has(self.autoscaling) || !has(self.autoscaling.target) || "
            "!has(self.autoscaling.target.decodeQueue)",
            lambda s: (
                s.mode != "Mixed"
                or s.autoscaling is None
                or s.autoscaling.target is None
                or s.autoscaling.target.decode_queue is None
            ),
            "target.decodeQueue only in mode Disaggregated: in mode Mixed requests wait for their "
            "prompt alone, which is target.prefillQueue",
            "autoscaling",
        ),
        Rule(
            "self.mode != 'Mixed' || !has(self.pools) || !has(self.pools.mixed) || "
            "!has(self.pools.mixed.engine) || !has(self.pools.mixed.engine.kvTransfer)",
            lambda s: (
                s.mode != "Mixed"
                or (engine := s.pool(Role.MIXED).engine) is None
                or engine.kv_transfer is None
            ),
            "no kvTransfer in mode Mixed",
            "pools",
        ),
    )

    def pool(self, role: Role) -> PoolSpec:
        """The pool of a role; where the spec has none, the default pool, or one that shares the
        budget with the other."""
        pool: PoolSpec | None = getattr(self.pools, role.value) if self.pools else None
        if pool is not None:
            return pool
        return self._part_of_budget() if self.chooses_split else PoolSpec()

    @property
    def chooses_split(self) -> bool:
        """Whether the operator chooses how many engines prefill and decode have."""
        scaling, pools = self.autoscaling, self.pools or Pools()
        return (
            self.is_disaggregated
            and pools.prefill is None
            and pools.decode is None
            and scaling is not None
            and scaling.gpu_budget is not None
            and scaling.provider == "Internal"
        )

    def _part_of_budget(self) -> PoolSpec:
        """At least one engine, at most all but one of the budget's."""
        assert self.autoscaling is not None
        accelerator = self.autoscaling.accelerator or AcceleratorSpec()
        engines = (self.autoscaling.gpu_budget or 0) // (accelerator.count or 1)
        most = min(MAX_REPLICAS, max(1, engines - 1))
        scaling = PoolAutoscaling(min_replicas=1, max_replicas=most)
        return PoolSpec(autoscaling=scaling, accelerator=accelerator)

    def accelerator_path(self, role: Role) -> str:
        """The path where a user sets the GPUs of one engine of a role."""
        if self.chooses_split:
            return "spec.autoscaling.accelerator"
        return f"spec.pools.{role}.accelerator"

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the mode, in the order they are shown."""
        return roles_of(self.mode)

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill and decode have a pool each."""
        return self.mode == "Disaggregated"

    def engine_of(self, role: Role) -> EngineSpec:
        """The settings of the engines of a role: those of its pool before those of all."""
        common, own = self.engine or EngineSpec(), self.pool(role).engine or EngineSpec()
        update = {name: value for name, value in own if value is not None}
        return common.model_copy(update=update)

    def kv_transfer(self, role: Role) -> KvTransfer | None:
        """How the engines of a role hand over the KV cache, with all defaults; None where they do
        not."""
        if not self.is_disaggregated:
            return None
        return self.engine_of(role).kv_transfer or KvTransfer()

    def speculation(self, role: Role) -> SpeculationSettings | None:
        """How the engines of a role draft; None where they do not, or only compute prompts."""
        return None if role is Role.PREFILL else self.engine_of(role).speculation

    def draft_uri(self, role: Role) -> str | None:
        """Where their draft model is, if one drafts."""
        speculation = self.speculation(role)
        return speculation.draft.uri if speculation and speculation.draft else None

    def host_cache(self, role: Role) -> HostCache | None:
        """Where engines of a role keep what they evict; decode engines evict no prompts."""
        return None if role is Role.DECODE else self.engine_of(role).host_cache

    @property
    def asks_for_keys(self) -> bool:
        """Whether clients need an API key."""
        return self.router is not None and self.router.auth is not None

    @property
    def replaces_in_place(self) -> bool:
        """Whether there is no room for new engines beside the former ones."""
        return self.rollout is not None and self.rollout.strategy == "InPlace"

    @property
    def restarted_at(self) -> str | None:
        """The mark of the last requested restart."""
        return self.rollout.restarted_at if self.rollout else None

    @property
    def gpu_budget(self) -> int | None:
        """GPUs that all pods of the service may hold; None: as many as there are."""
        return self.autoscaling.gpu_budget if self.autoscaling else None

    def drain_seconds(self, role: Role) -> int:
        """How long streams of the engines of a role may finish after SIGTERM."""
        drain_seconds = self.engine_of(role).drain_seconds
        return DRAIN_SECONDS if drain_seconds is None else drain_seconds

    @property
    def longest_drain_seconds(self) -> int:
        """How long streams may finish in any pool, and so in the routers."""
        return max(map(self.drain_seconds, self.roles))

    @property
    def wait_for_engine_seconds(self) -> int | None:
        """How long the routers hold a request until an engine is up. If a pool may have no engine:
        as long as one may take to load. None: the routers' default."""
        asleep = any(
            scaling is not None and scaling.min_replicas == 0
            for scaling in (self.pool(role).autoscaling for role in self.roles)
        )
        if not asleep:
            return None
        return max(self.engine_of(role).startup_seconds or STARTUP_SECONDS for role in self.roles)


MODES: Final = ("Mixed", "Disaggregated")


def roles_of(mode: str) -> tuple[Role, ...]:
    """The roles of a mode, in the order they are shown."""
    return (Role.MIXED,) if mode == "Mixed" else (Role.PREFILL, Role.DECODE)


NAME_RULES: Final = (
    Rule(
        f"self.metadata.name.matches('^[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?$')",
        lambda name: (
            re.fullmatch(rf"[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?", name) is not None
        ),
        f"a-z, 0-9 and '-', first a letter and last no '-', at most {MAX_NAME} characters, as the "
        "front Service has the same name",
        "metadata.name",
    ),
)
"""Rules on the whole object; `holds` takes the name."""
