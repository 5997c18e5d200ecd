"""The latency promise of an InferenceService, how its pools move and roll out, and its traces."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator, WithJsonSchema
from sluice_contract.config.server import MetricsCompatibility
from sluice_contract.config.tracing import CollectorUrl

from sluice_operator.api.base import (
    ATOMIC,
    ApiModel,
    LabelValue,
    Rule,
    left_out,
    percent,
    percent_schema,
)
from sluice_operator.api.pools import MAX_REPLICAS, PoolAutoscaling

Percentile = Annotated[
    int | str, PlainValidator(percent(50, 99.9)), WithJsonSchema(percent_schema(50, 99.9))
]
SamplePercent = Annotated[
    int | str, PlainValidator(percent(0, 100)), WithJsonSchema(percent_schema(0, 100))
]

_PORT: Final = (
    "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
)
_ORIGIN: Final = rf"^https?://([^/:\[\]]+|\[[^/\[\]]+\])(:({_PORT}))?(/|$)"
"""Scheme, host and port, as far as an expression can say: not whether an address is one."""


def _has_origin(url: str) -> bool:
    try:
        return re.search(_ORIGIN, url) is not None and bool(urlsplit(url).hostname)
    except ValueError:
        return False


class Slo(ApiModel):
    """The latency promise that scheduling and scaling work towards."""

    ttft_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time to the first token, in milliseconds. Requests that can keep it are "
        "admitted before late ones; no request is refused because it is late.",
    )
    itl_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        description="Time between tokens, in milliseconds. Each engine chooses the chunk of every "
        "step so that the step keeps it; engine.chunkSize is the most it may choose.",
    )
    percentile: Percentile = Field(
        default=95,
        description="Share of requests, and of an engine's steps, that must keep it, in percent.",
    )


class TracingSpec(ApiModel):
    """Tracing: the collector of spans, and the share of requests that have spans."""

    endpoint: CollectorUrl = Field(
        description="Base URL of an OpenTelemetry collector that takes OTLP over HTTP, in a "
        "namespace with the label serving.sluice.dev/monitoring: true. Requires images that are "
        "built with the extra `tracing`.",
    )
    sample_percent: SamplePercent = Field(
        default=100,
        description="Percent of requests that are sampled where the client's traceparent does not "
        "say; 0: none, even if it says so. If keys are asked for, requests without a valid API "
        "key are never sampled.",
    )

    RULES: ClassVar = (
        Rule(
            f"self.endpoint.matches(r'{_ORIGIN}')",
            lambda tracing: _has_origin(tracing.endpoint),
            "a host, and a port of 1 to 65535 or none",
            "endpoint",
        ),
    )


class MetricsSpec(ApiModel):
    """Metrics that engines report to Prometheus in addition to their own."""

    compatibility: MetricsCompatibility | None = Field(
        default=None, description="vLLM: its names for the same figures, too."
    )


class AutoscalingTarget(ApiModel):
    """Most load of a pool."""

    queue_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=3_600_000,
        json_schema_extra=left_out("half of slo.ttftMilliseconds; 1000 without it"),
        description="Work that may wait in each engine that computes prompts, as the time that it "
        "takes. A given value is kept strictly, which takes more engines: leave it out if "
        "slo.ttftMilliseconds is set.",
    )
    prefill_queue: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        json_schema_extra=left_out("off"),
        description="Requests that wait for their prompt, in each engine that computes prompts.",
    )
    decode_queue: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        json_schema_extra=left_out("off"),
        description="Requests that wait for decode, for each decode engine: without KV pages, or "
        "computed and not read yet. Only with prefill.",
    )


class AutoscalingSpec(ApiModel):
    """The numbers between which engines follow the load, and how they follow it."""

    min_replicas: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REPLICAS,
        description="Fewest engines; 0 scales to zero. With prefill: of each pool.",
    )
    max_replicas: int | None = Field(
        default=None, ge=1, le=MAX_REPLICAS, description="Most engines; only with minReplicas."
    )
    gpu_budget: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="GPUs that the whole service may hold, pods that come or go included. With "
        "prefill, and without any number of engines, the operator splits them between the pools, "
        "and follows the load.",
    )
    target: AutoscalingTarget | None = Field(default=None, description="When to scale.")
    on_metrics_loss: Literal["Hold", "Floor"] = Field(
        default="Hold",
        description="Hold keeps the replicas when load reports are missing, Floor goes to "
        "minReplicas.",
    )
    provider: Literal["Internal", "External"] = Field(
        default="Internal",
        description="Internal: the operator scales. External: a HorizontalPodAutoscaler or KEDA "
        "scales the EnginePools.",
    )

    RULES: ClassVar = (
        Rule(
            "has(self.minReplicas) == has(self.maxReplicas)",
            lambda s: (s.min_replicas is None) == (s.max_replicas is None),
            "minReplicas and maxReplicas, or neither",
        ),
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || "
            "self.minReplicas <= self.maxReplicas",
            lambda s: None in (s.min_replicas, s.max_replicas) or s.min_replicas <= s.max_replicas,
            "at most maxReplicas",
            "minReplicas",
        ),
    )

    @property
    def limits(self) -> PoolAutoscaling | None:
        """The numbers between which engines move; None: their number is fixed, or chosen."""
        if self.min_replicas is None or self.max_replicas is None:
            return None
        return PoolAutoscaling(min_replicas=self.min_replicas, max_replicas=self.max_replicas)


class JudgeSpec(ApiModel):
    """The signals by which a new revision is compared with the old one."""

    errors: bool = Field(
        default=True,
        description="Judges failed requests, counted before the router's retry, a share of which "
        "less than half is answered, and engines that end (two in an hour, or a fifth of more than "
        "ten) or lose readiness twice in 10 minutes.",
    )
    slo: bool = Field(
        default=True,
        description="Judges answers that miss spec.slo, while the new engines get no more requests "
        "each, and the speed of steps at equal work. Without spec.slo the speed alone, which finds "
        "a revision worse and never promotes it: without errors a person does.",
    )
    margin_points: int = Field(
        default=20,
        ge=1,
        le=100,
        description="Difference, in tenths of a percent point of the keys (sessions or chats), up "
        "to which the new revision is no worse. A smaller one needs more of them.",
    )


class CanarySpec(ApiModel):
    """A share of requests for a new revision, before it gets all."""

    steps: list[Annotated[int, Field(ge=1, le=50)]] = Field(
        default=[10],
        min_length=1,
        max_length=8,
        json_schema_extra=ATOMIC,
        description="Percent of requests that go to the new revision, step by step; each more than "
        "the one before. The next one follows once the judge has found no difference, or with "
        "`sluice rollout promote`; after the last one all. From 50 the next step is all: with "
        "more, as many new engines as old ones would each get more requests than these.",
    )
    minutes: int = Field(
        default=10,
        ge=2,
        le=1440,
        description="Least time at each step, in minutes; speeds take two to compare. After ten "
        "times as long without a verdict, Progressing has the reason CanaryStalled. Only with a "
        "judge.",
    )
    judge: JudgeSpec = Field(
        default=JudgeSpec(),
        description="What the operator judges by. With errors and slo both false a person decides "
        "about every step.",
    )
    on_worse: Literal["Halt", "Hold"] = Field(
        default="Halt",
        description="What happens if the new revision is found worse, or its engines, of any step, "
        "are not ready within engine.startupSeconds and two minutes. Halt ends all: the old one "
        "has all requests, and the new one is not tried again until `sluice rollout promote` or "
        "a change of what engines are made of. Hold leaves them, with the requests that they have.",
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.steps) || (self.steps.isSorted() && "
            "self.steps.all(step, self.steps.exists_one(other, other == step)))",
            lambda canary: list(canary.steps) == sorted(set(canary.steps)),
            "percents that grow with each step",
            "steps",
        ),
        Rule(
            "!has(self.minutes) || !has(self.judge) || self.judge.?errors.orValue(true) || "
            "self.judge.?slo.orValue(true)",
            lambda canary: canary.is_judged or "minutes" not in canary.model_fields_set,
            "only with judge.errors or judge.slo: a person decides about every step",
            "minutes",
        ),
    )

    @property
    def is_judged(self) -> bool:
        """Whether the operator looks for a worse revision."""
        return self.judge.errors or self.judge.slo


class RolloutSpec(ApiModel):
    """How a new revision replaces the old one."""

    strategy: Literal["Surge", "InPlace"] = Field(
        default="Surge",
        description="Surge starts the new revision next to the old one, and ends the old one when "
        "all of the new one is ready. InPlace, for clusters without room for both, ends an engine "
        "before it starts another: fewer serve meanwhile, and with one engine none.",
    )
    canary: CanarySpec | None = Field(
        default=None,
        description="A new revision gets a share of requests first, on engines that come in "
        "addition to all of the old one. Left out: it gets as many as its engines take.",
    )
    upgrade: LabelValue | None = Field(
        default=None,
        min_length=1,
        description="Any text, such as a date. Another text than before takes what the present "
        "release of the operator would change: default images, sizes, pods.",
    )
    restarted_at: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Any text, such as the time. With another text than before, every engine and "
        "router is replaced by one of the same image and settings, one after the other; written "
        "by `sluice rollout restart`.",
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.canary) || !has(self.strategy) || self.strategy != 'InPlace'",
            lambda s: s.canary is None or s.strategy != "InPlace",
            "only with strategy Surge: the new engines come in addition to the old ones",
            "canary",
        ),
    )
