"""InferenceService: what a user asks for, field by field.

The whole v1alpha1 shape, including what `validation/errors.py` still refuses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator
from pydantic.alias_generators import to_snake
from sluice_contract.cluster.labels import Role
from sluice_contract.config.host_cache import HostCacheSettings
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.config.speculation import SpeculationSettings

from sluice_operator.api.base import (
    CRD_DEFAULT,
    REFUSES_NULL,
    ApiModel,
    Resources,
    Rule,
    left_out,
)
from sluice_operator.api.engine import DRAIN_SECONDS, STARTUP_SECONDS, EngineSpec, ModelSpec
from sluice_operator.api.pools import (
    MAX_REPLICAS,
    AcceleratorSpec,
    Pool,
    PoolAutoscaling,
    PrefillSpec,
    gpu_count,
    numbers_rule,
    replicas_path,
    section_of,
)
from sluice_operator.api.router import RouterSpec
from sluice_operator.api.scaling import (
    AutoscalingSpec,
    MetricsSpec,
    RolloutSpec,
    Slo,
    TracingSpec,
)
from sluice_operator.api.template import PodTemplate

MAX_NAME: Final = 40
"""Longest name of a service: the longest derived name, NAME-prefill-<10 digits of a hash>, must fit
a DNS label."""
Mode = Literal["Mixed", "Disaggregated"]
"""Mixed: every engine does prefill and decode. Disaggregated: a pool for each."""


_SHARED_BUDGET_CEL: Final = (
    "(has(self.prefill) && has(self.autoscaling) && has(self.autoscaling.gpuBudget) && "
    "!has(self.autoscaling.minReplicas))"
)
_NO_SECTION: Final = PrefillSpec()
_NO_SETTINGS: Final = EngineSpec()
_INHERITED: Final = ("accelerator", "resources", "template")
"""Sections that `prefill` inherits as a whole from the top level, where it leaves them out."""
_PREFILL_NUMBER_CEL: Final = "(has(self.prefill.replicas) || has(self.prefill.autoscaling))"


class InferenceServiceSpec(ApiModel):
    """A model and the fleet of engines that serves it."""

    model: ModelSpec = Field(description="Which weights to serve, and under what name.")
    replicas: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REPLICAS,
        json_schema_extra=left_out(
            "1; decided by autoscaling where that is set; chosen with gpuBudget and prefill"
        ),
        description="Number of engines; with prefill, of those that decode. Not together with "
        "autoscaling.minReplicas. 0: no engine of either pool.",
    )
    accelerator: AcceleratorSpec | None = Field(
        default=None, description="GPUs of one engine; without it the engine runs on CPUs."
    )
    resources: Resources | None = Field(
        default=None,
        description="CPU and memory of one engine's container. Without a memory limit its KV "
        "pool is sized by the node's.",
    )
    template: PodTemplate | None = Field(
        default=None, description="Additions to the engines' pods."
    )
    engine: EngineSpec | None = Field(
        default=None, description="Settings of the engines; each is resolved when left out."
    )
    slo: Slo | None = Field(
        default=None, description="The latency promise that scheduling and scaling work towards."
    )
    autoscaling: AutoscalingSpec | None = Field(
        default=None, description="Lets the number of engines follow the load."
    )
    prefill: PrefillSpec | None = Field(
        default=None,
        json_schema_extra=REFUSES_NULL,
        description="Prompts are computed in a pool of their own, and the other engines decode. "
        "Left out: every engine does both.",
    )
    rollout: RolloutSpec | None = Field(
        default=None, description="How a new revision replaces the old one."
    )
    router: RouterSpec | None = Field(default=None, description="The front door of the service.")
    tracing: TracingSpec | None = Field(
        default=None, description="Where spans of requests go; left out: nowhere."
    )
    metrics: MetricsSpec | None = Field(
        default=None,
        description="Metrics that engines report to Prometheus in addition to their own.",
    )
    paused: bool = Field(
        default=False,
        json_schema_extra=CRD_DEFAULT,
        description="True: the operator writes nothing but status. A canary that was aborted or "
        "found worse loses its requests all the same.",
    )

    RULES: ClassVar = (
        numbers_rule(
            "autoscaling",
            "!has(self.autoscaling) || !has(self.autoscaling.minReplicas)",
            lambda s: s.autoscaling is None or s.autoscaling.min_replicas is None,
        ),
        Rule(
            "has(self.prefill) || !has(self.engine) || !has(self.engine.kvTransfer)",
            lambda s: s.prefill is not None or s.engine is None or s.engine.kv_transfer is None,
            "only beside spec.prefill, with two pools",
            "engine.kvTransfer",
        ),
        Rule(
            "has(self.prefill) || !has(self.autoscaling) || !has(self.autoscaling.target) || "
            "!has(self.autoscaling.target.decodeQueue)",
            lambda s: (
                s.prefill is not None
                or s.autoscaling is None
                or s.autoscaling.target is None
                or s.autoscaling.target.decode_queue is None
            ),
            "only beside spec.prefill: without it requests wait for their prompt alone, which is "
            "target.prefillQueue",
            "autoscaling.target.decodeQueue",
        ),
        Rule(
            "!has(self.autoscaling) || !has(self.autoscaling.gpuBudget) || has(self.accelerator)",
            lambda s: (
                s.autoscaling is None
                or s.autoscaling.gpu_budget is None
                or s.accelerator is not None
            ),
            "only beside spec.accelerator, the GPUs of one engine",
            "autoscaling.gpuBudget",
        ),
        Rule(
            f"!has(self.replicas) || !{_SHARED_BUDGET_CEL} || {_PREFILL_NUMBER_CEL}",
            lambda s: s.replicas is None or not s.shares_budget or s.has_prefill_number,
            "beside gpuBudget and prefill only with prefill.replicas: the operator chooses the "
            "numbers of both pools, or of neither",
            "replicas",
        ),
        Rule(
            f"has(self.replicas) || !{_SHARED_BUDGET_CEL} || !{_PREFILL_NUMBER_CEL}",
            lambda s: s.replicas is not None or not s.shares_budget or not s.has_prefill_number,
            "a number of engines beside gpuBudget only with spec.replicas or "
            "autoscaling.minReplicas: the operator chooses the numbers of both pools, or of "
            "neither",
            "prefill",
        ),
    )

    @field_validator("prefill", mode="before")
    @classmethod
    def _no_null(cls, value: Any) -> Any:
        """Refuses `prefill:` with nothing behind it, which the API server keeps as null."""
        if value is None:
            raise ValueError("an object: write `prefill: {}`, or leave it out")
        return value

    def pool(self, role: Role) -> Pool:
        """The pool of a role, with the values that it inherits."""
        own = self.prefill if role is Role.PREFILL and self.prefill else _NO_SECTION
        replicas, autoscaling = self._numbers(role)
        resources, template = own.resources or self.resources, own.template or self.template
        return Pool(
            replicas=replicas,
            autoscaling=autoscaling,
            accelerator=own.accelerator or self.accelerator,
            accelerator_section=self.place(role, "accelerator").rpartition(".")[0],
            resources=None if resources == Resources() else resources,
            template=None if template == PodTemplate() else template,
            engine=self.engine_of(role),
        )

    def _numbers(self, role: Role) -> tuple[int | None, PoolAutoscaling | None]:
        """The fixed number of engines of a role, or the limits between which it moves; without
        either, it is 1."""
        return (0, None) if self.replicas == 0 else self._numbers_when_started(role)

    def _numbers_when_started(self, role: Role) -> tuple[int | None, PoolAutoscaling | None]:
        """The fixed number and limits of a role, as if `replicas: 0` did not stop both pools."""
        if self.chooses_split:
            return None, self._part_of_budget(role)
        limits = self.autoscaling.limits if self.autoscaling else None
        if role is not Role.PREFILL or self.prefill is None:
            return self.replicas, limits
        if self.has_prefill_number:
            return self.prefill.replicas, self.prefill.autoscaling
        return None, limits

    def limits_when_started(self, role: Role) -> PoolAutoscaling | None:
        """The limits between which a role's engines move, even while `replicas: 0` stops them;
        None: their number is fixed."""
        return self._numbers_when_started(role)[1]

    @property
    def has_prefill_number(self) -> bool:
        """Whether the prefill pool has a number of engines of its own."""
        own = self.prefill
        return own is not None and not (own.replicas is None and own.autoscaling is None)

    @property
    def lacks_prefill(self) -> bool:
        """Whether engines decode and, by `prefill.replicas: 0`, none computes prompts."""
        return self.prefill is not None and self.prefill.replicas == 0 and self.replicas != 0

    @property
    def shares_budget(self) -> bool:
        """Whether two pools share a budget, and no limits of the top level split it."""
        scaling = self.autoscaling
        return (
            self.prefill is not None
            and scaling is not None
            and scaling.gpu_budget is not None
            and scaling.min_replicas is None
        )

    @property
    def chooses_split(self) -> bool:
        """Whether the operator chooses how many engines prefill and decode have."""
        return (
            self.shares_budget
            and self.replicas is None
            and not self.has_prefill_number
            and self.autoscaling is not None
            and self.autoscaling.provider == "Internal"
        )

    def _part_of_budget(self, role: Role) -> PoolAutoscaling:
        """The limits of a role: at least one engine, and at most those for which one engine of the
        other role leaves GPUs."""
        others = sum(self._gpus(other) for other in self.roles if other is not role)
        left = (self.gpu_budget or 0) - others
        most = min(MAX_REPLICAS, max(1, left // max(1, self._gpus(role))))
        return PoolAutoscaling(min_replicas=1, max_replicas=most)

    def _gpus(self, role: Role) -> int:
        """GPUs of one engine of a role."""
        own = self.prefill.accelerator if role is Role.PREFILL and self.prefill else None
        return gpu_count(own or self.accelerator)

    def inherited(self, role: Role) -> tuple[str, ...]:
        """The sections of the top level that the pool of a role inherits, as paths."""
        if role is not Role.PREFILL or self.prefill is None:
            return ()
        given = (name for name in _INHERITED if getattr(self, name) is not None)
        return tuple(f"spec.{name}" for name in given if getattr(self.prefill, name) is None)

    def place(self, role: Role, section: str) -> str:
        """The path of `section` of a role's pool, where a user wrote it or would write it."""
        is_own = self.prefill is not None and getattr(self.prefill, section) is not None
        return f"{section_of(role) if is_own else 'spec'}.{section}"

    def engine_place(self, role: Role, key: str) -> str:
        """The path above `key`, an engine setting of a role, where a user wrote it or would write
        it."""
        own = self.prefill.engine if role is Role.PREFILL and self.prefill else None
        is_own = own is not None and getattr(own, to_snake(key.split(".")[0]), None) is not None
        return "spec.prefill.engine" if is_own else "spec.engine"

    def replicas_path(self, role: Role) -> str:
        """The path of what sets the number of engines of a role."""
        numbers = {"replicas", "autoscaling"}
        stored = self.model_dump(
            mode="json", by_alias=True, include={**dict.fromkeys(numbers, True), "prefill": numbers}
        )
        return replicas_path(stored, role)

    def merges_settings(self, role: Role) -> bool:
        """Whether the engine settings of a role come from two sections."""
        return role is Role.PREFILL and self.prefill is not None and self.prefill.engine is not None

    @property
    def mode(self) -> Mode:
        """Whether every engine does both phases, or prefill and decode have a pool each."""
        return "Mixed" if self.prefill is None else "Disaggregated"

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the pools, in the order they are shown."""
        return roles_of(self.mode)

    @property
    def is_disaggregated(self) -> bool:
        """Whether prefill and decode have a pool each."""
        return self.prefill is not None

    def engine_of(self, role: Role) -> EngineSpec:
        """The settings of the engines of a role: those of its pool override those of all
        engines."""
        common = self.engine or _NO_SETTINGS
        own = self.prefill.engine if role is Role.PREFILL and self.prefill else None
        if own is None:
            return common
        return common.model_copy(update={key: value for key, value in own if value is not None})

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
        """URI of the draft model of a role's engines; None where no model drafts."""
        speculation = self.speculation(role)
        return speculation.draft.uri if speculation and speculation.draft else None

    def host_cache(self, role: Role) -> HostCacheSettings | None:
        """The host cache of a role's engines, which takes evicted KV pages; None where there is
        none. Decode engines evict no prompts."""
        return None if role is Role.DECODE else self.engine_of(role).host_cache

    @property
    def asks_for_keys(self) -> bool:
        """Whether clients need an API key."""
        return self.router is not None and self.router.auth is not None

    @property
    def replaces_in_place(self) -> bool:
        """Whether engines are replaced without room for new ones next to the former ones."""
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
        """Seconds for which the routers hold a request until an engine is up: the longest load of
        an engine, if a pool may have no engine. None: the routers' default. A stopped service keeps
        its routers as they are."""
        limits = map(self.limits_when_started, self.roles)
        asleep = any(scaling is not None and scaling.min_replicas == 0 for scaling in limits)
        if not asleep:
            return None
        return max(self.engine_of(role).startup_seconds or STARTUP_SECONDS for role in self.roles)


def mode_of(spec: Mapping[str, Any]) -> Mode:
    """The mode of a spec as it is stored."""
    return "Mixed" if spec.get("prefill") is None else "Disaggregated"


def roles_of(mode: Mode) -> tuple[Role, ...]:
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
