"""What the operator reports in `.status` of both kinds. Shapes only; `*/status.py` fills them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from sluice_contract.config.adapters import MAX_ADAPTERS
from sluice_contract.config.model_facts import ModelFacts

from sluice_operator.api.base import ATOMIC, DECIMAL_PATTERN, ApiModel, list_map

Timestamp = str


class Condition(ApiModel):
    """One aspect of the object's state, in Kubernetes' usual form."""

    type: str = Field(
        min_length=1, max_length=316, description="Which aspect, e.g. Ready or Updated."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this is about."
    )
    reason: str = Field(max_length=1024, description="Why, in one CamelCase word.")
    message: str = Field(max_length=32_768, description="Why, in words.")
    last_transition_time: Timestamp = Field(
        json_schema_extra={"format": "date-time"}, description="When status last changed."
    )


def _conditions() -> Any:
    return Field(
        default=None,
        max_length=32,
        json_schema_extra=list_map("type"),
        description="Aspects of the state. Ready: it serves. Updated: all of it is what the spec "
        "asks for now; the one to wait for after a change.",
    )


class PoolSummary(ApiModel):
    """One pool in numbers."""

    desired_replicas: int = Field(description="Engines that there should be.")
    replicas: int = Field(description="Engines that run or start, of every revision.")
    ready_replicas: int = Field(description="Engines that answer, of every revision.")
    updated_replicas: int = Field(description="Engines of the current revision that answer.")
    draining_replicas: int = Field(description="Engines that finish their streams and end.")
    summary: str = Field(description="readyReplicas/desiredReplicas, for people.")
    accelerator: str | None = Field(
        default=None, description="What the engines run on, e.g. 2 x NVIDIA-A100-SXM4-40GB or CPU."
    )


class PoolSummaries(ApiModel):
    """The pools in numbers, by role."""

    mixed: PoolSummary | None = Field(default=None, description="Engines that do both phases.")
    prefill: PoolSummary | None = Field(default=None, description="Engines that compute prompts.")
    decode: PoolSummary | None = Field(default=None, description="Engines that generate tokens.")


class ResolvedValue(ApiModel):
    """An engine setting as it is used, and where it comes from."""

    value: Any = Field(
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
        description="The value: a boolean, a number or a string.",
    )
    source: Literal["User", "Product", "Memory", "General"] = Field(
        description="Who decided: the spec, the accelerator's product or memory, or a default."
    )
    from_: str = Field(alias="from", description="What exactly decided, e.g. A100-40GB TP1.")


class ResolvedSettings(ApiModel):
    """The engine settings in use, by role and key."""

    mixed: dict[str, ResolvedValue] | None = Field(
        default=None, description="Settings of the mixed pool."
    )
    prefill: dict[str, ResolvedValue] | None = Field(
        default=None, description="Settings of the prefill pool."
    )
    decode: dict[str, ResolvedValue] | None = Field(
        default=None, description="Settings of the decode pool."
    )


class RevisionNames(ApiModel):
    """A revision of each pool, by role."""

    mixed: str | None = Field(default=None, description="Revision of the mixed pool.")
    prefill: str | None = Field(default=None, description="Revision of the prefill pool.")
    decode: str | None = Field(default=None, description="Revision of the decode pool.")


class RolloutStatus(ApiModel):
    """How the revisions of all pools replace each other."""

    reason: str = Field(description="What the plan is, in one CamelCase word.")
    message: str = Field(description="What the plan is, in words.")
    stable: RevisionNames | None = Field(
        default=None,
        description="Revisions that were complete in all pools last; until any were, the first "
        "that served. They keep their engines until others are complete.",
    )


class ScalingStatus(ApiModel):
    """The last decision on the number of replicas."""

    reason: str = Field(description="Why, in one CamelCase word.")
    message: str = Field(description="Why, in words.")
    time: Timestamp = Field(
        json_schema_extra={"format": "date-time"}, description="When it was decided."
    )
    in_time_percent: str | None = Field(
        default=None,
        pattern=DECIMAL_PATTERN,
        description="Share of the requests of the five minutes before that kept slo, as engines "
        "counted them. A request that waits for its first token longer than slo allows counts as "
        "missed while it waits. Absent without slo, and where none counts.",
    )
    in_time_requests: int | None = Field(
        default=None, description="How many requests inTimePercent is a share of."
    )
    start: str | None = Field(
        default=None,
        description="How long an engine of each pool takes to start, as scaling assumes it, and "
        "in which phases: model (init containers), image (pulled, container created), and the "
        "phases of the metric sluice_engine_start_seconds.",
    )


class ModelStatus(ModelFacts):
    """A hub's model as it was resolved: the same for every pool and every later pod."""

    uri: str = Field(description="What was resolved.")
    revision: str = Field(description="Branch, tag or commit that was asked for.")
    refresh: str | None = Field(
        default=None, description="The spec's refresh when it was resolved."
    )
    commit: str = Field(description="Commit that the revision was.")
    bytes: int = Field(description="Size of the files that an engine reads.")
    claim: str | None = Field(
        default=None, description="PersistentVolumeClaim that has all of the commit."
    )
    claim_uid: str | None = Field(
        default=None,
        description="Its uid, where the operator has made it: another of that name is empty.",
    )


class HandoverStatus(ApiModel):
    """What carries KV pages from prefill to decode engines."""

    backend: str = Field(description="As in kvTransfer.")
    protocol: str = Field(description="What the backend reads over.")
    megabytes_per_second: int | None = Field(
        default=None,
        description="Speed of one read: median over decode engines, each measured in its first "
        "16 MiB.",
    )


class LedgerStatus(ApiModel):
    """What became of the requests for completions that the ready routers got since they started."""

    answered: int = Field(description="Answered by one engine.")
    resumed: int = Field(description="Answered; a second engine went on.")
    refused: int = Field(description="Refused: 4xx or 503.")
    abandoned: int = Field(description="Left by the client.")
    lost: int = Field(description="Accepted, and not answered to the end.")


class FetchedAdapter(ApiModel):
    """A hub's adapter that was downloaded: the same for every pool and every later pod."""

    name: str = Field(description="Its name; a draft model's URI.")
    uri: str = Field(description="What was resolved.")
    refresh: str | None = Field(
        default=None, description="The spec's refresh when it was resolved."
    )
    commit: str = Field(description="Commit that the revision was.")
    claim: str = Field(description="PersistentVolumeClaim that has it.")
    claim_uid: str | None = Field(
        default=None,
        description="Its uid, where the operator has made it: another of that name is empty.",
    )


class InferenceServiceStatus(ApiModel):
    """What the operator has seen and done."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this status is about."
    )
    applied_generation: int | None = Field(
        default=None,
        description="Generation of the spec that was last carried out. Older than "
        "observedGeneration while the spec is refused or waits: its settings stay in use.",
    )
    completed_generation: int | None = Field(
        default=None,
        description="Generation of the spec that last was carried out entirely: since then "
        "Reconciling is absent, even while an engine is replaced.",
    )
    mode: Literal["Mixed", "Disaggregated"] | None = Field(
        default=None,
        description="What is served. Mixed: every engine does prefill and decode. Disaggregated: "
        "a pool for each.",
    )
    replicas: int | None = Field(
        default=None,
        description="Engines that run or start and that spec.replicas counts: those that decode.",
    )
    selector: str | None = Field(
        default=None, description="Label selector of these engines, for the scale subresource."
    )
    summary: str | None = Field(
        default=None, description="Engines that answer/that there should be, of each pool."
    )
    url: str | None = Field(
        default=None,
        description="Where the OpenAI API answers; with /v1 it is the base URL of clients.",
    )
    conditions: list[Condition] | None = _conditions()
    model: ModelStatus | None = Field(
        default=None, description="The hub's model that was resolved last."
    )
    adapters: list[FetchedAdapter] | None = Field(
        default=None,
        max_length=MAX_ADAPTERS,
        json_schema_extra=list_map("name"),
        description="Adapters of a hub that were downloaded. While another version of one is "
        "downloaded, this one is served.",
    )
    pools: PoolSummaries | None = Field(default=None, description="The pools in numbers.")
    resolved: ResolvedSettings | None = Field(
        default=None,
        description="Engine settings in use and their sources. They change only with the spec. "
        "Not those that engines choose at their start.",
    )
    handover: HandoverStatus | None = Field(
        default=None,
        description="What carries KV pages between the pools, as decode engines report it.",
    )
    ledger: LedgerStatus | None = Field(
        default=None,
        description="What became of requests since the routers started; read every five minutes.",
    )
    rollout: RolloutStatus | None = Field(
        default=None, description="How the revisions of all pools replace each other."
    )
    scaling: ScalingStatus | None = Field(
        default=None, description="The last decision on the number of replicas."
    )


class RevisionStatus(ApiModel):
    """One revision of a pool: a Deployment of its own."""

    name: str = Field(description="Hash of everything that changes the engine process.")
    config: str = Field(description="ConfigMap of the revision.")
    replicas: int = Field(description="Pods of the revision.")
    ready: int = Field(description="Pods of the revision that answer.")
    loading: int | None = Field(
        default=None, description="Pods of the revision that load their model and make progress."
    )
    gated: int | None = Field(
        default=None, description="Pods of the revision with scheduling gates."
    )
    current: bool = Field(description="Whether this is the revision the spec asks for.")


class ReportedAccelerator(ApiModel):
    """What some engines report that they compute on."""

    product: str | None = Field(
        default=None, description="Product of the GPUs; absent where an engine found none."
    )
    memory_mib: int | None = Field(default=None, description="Memory of one GPU, in MiB.")
    count: int = Field(description="GPUs of one engine.")
    engines: int = Field(description="Engines that report this.")


class AdapterStatus(ApiModel):
    """Where one adapter is loaded."""

    name: str = Field(description="Its name.")
    loaded: int = Field(description="Ready engines that serve it.")
    failed: int = Field(description="Ready engines that cannot load it, and try again.")
    message: str | None = Field(
        default=None, max_length=1024, description="Why, as one of those engines says."
    )


class EnginePoolStatus(ApiModel):
    """What the operator has seen and done."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this status is about."
    )
    completed_generation: int | None = Field(
        default=None,
        description="Generation of the spec that last was carried out entirely: since then "
        "Reconciling is absent, even while an engine is replaced.",
    )
    replicas: int | None = Field(default=None, description="Engines that run or start.")
    ready_replicas: int | None = Field(
        default=None, description="Engines that answer, of every revision."
    )
    updated_replicas: int | None = Field(
        default=None, description="Engines of the current revision that answer."
    )
    draining_replicas: int | None = Field(
        default=None, description="Engines that finish their streams and end."
    )
    selector: str | None = Field(
        default=None, description="Label selector of the engines, for the scale subresource."
    )
    summary: str | None = Field(
        default=None, description="Engines that answer/that there should be."
    )
    revisions: list[RevisionStatus] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Revisions that have pods, the current one first.",
    )
    accelerators: list[ReportedAccelerator] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="What ready engines of the current revision report that they compute on; "
        "absent for a pool without an accelerator.",
    )
    handover: HandoverStatus | None = Field(
        default=None, description="What carries KV pages, as the engines of a decode pool report."
    )
    adapters: list[AdapterStatus] | None = Field(
        default=None,
        max_length=512,
        json_schema_extra=ATOMIC,
        description="Adapters that ready engines serve or cannot load, by name.",
    )
    conditions: list[Condition] | None = _conditions()
