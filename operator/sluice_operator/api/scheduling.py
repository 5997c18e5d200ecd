"""Where pods may land: affinity, tolerations, node selectors. Fields are those of a pod.

Describes only; the operator copies these into the pod and interprets the node selector alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sluice_operator.api.base import ATOMIC, ApiModel, DnsLabel, LabelKey, LabelValue, Rule

SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class NodeRequirement(ApiModel):
    """One expression over a node's labels or fields."""

    key: LabelKey = Field(description="Label key, or field name in matchFields.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How to compare."
    )
    values: list[LabelValue] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Values; none for Exists, DoesNotExist.",
    )


class NodeTerm(ApiModel):
    """Expressions that must all hold for a node."""

    match_expressions: list[NodeRequirement] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="Requirements on the node's labels.",
    )
    match_fields: list[NodeRequirement] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="Requirements on the node's fields.",
    )


class NodeTerms(ApiModel):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeTerm] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="Alternatives; one of them must hold.",
    )


class PreferredNodeTerm(ApiModel):
    """A preference for nodes, with its weight."""

    weight: int = Field(ge=1, le=100, description="How much this preference counts.")
    preference: NodeTerm = Field(description="The nodes that are preferred.")


class NodeAffinity(ApiModel):
    """Which nodes a pod must or should land on."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = Field(
        default=None, description="What a node must fulfil."
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredNodeTerm] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="What a node should fulfil.",
    )


class LabelRequirement(ApiModel):
    """One expression over labels."""

    key: LabelKey = Field(description="Label key.")
    operator: SelectorOperator = Field(description="How to compare.")
    values: list[LabelValue] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Values; none for Exists, DoesNotExist.",
    )


class LabelSelector(ApiModel):
    """Selects objects by their labels; all parts must hold."""

    match_labels: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels and the values they must have."
    )
    match_expressions: list[LabelRequirement] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra=ATOMIC,
        description="Requirements on labels.",
    )


class PodTerm(ApiModel):
    """Other pods, and the topology within which they count as near."""

    label_selector: LabelSelector | None = Field(default=None, description="Which pods.")
    topology_key: LabelKey = Field(description="Node label whose equal values mean near.")
    namespaces: list[DnsLabel] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Namespaces; the pod's own when left out.",
    )


class PreferredPodTerm(ApiModel):
    """A preference about other pods, with its weight."""

    weight: int = Field(ge=1, le=100, description="How much this preference counts.")
    pod_affinity_term: PodTerm = Field(description="The pods the preference is about.")


class PodAffinity(ApiModel):
    """Near which pods a pod must or should land; for anti-affinity, away from which."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] | None = Field(
        default=None, max_length=16, json_schema_extra=ATOMIC, description="What must hold."
    )
    preferred_during_scheduling_ignored_during_execution: list[PreferredPodTerm] | None = Field(
        default=None, max_length=16, json_schema_extra=ATOMIC, description="What should hold."
    )


class Affinity(ApiModel):
    """Rules on nodes and on neighbouring pods."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Rules on nodes.")
    pod_affinity: PodAffinity | None = Field(default=None, description="Pods to be near to.")
    pod_anti_affinity: PodAffinity | None = Field(
        default=None, description="Pods to keep away from."
    )


class TopologySpread(ApiModel):
    """How evenly the pods of a revision lie over a topology."""

    max_skew: int = Field(ge=1, description="Most pods that one part may have more than another.")
    topology_key: LabelKey = Field(description="Node label whose values are the parts.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="What to do with a pod that would break it."
    )
    min_domains: int | None = Field(
        default=None, ge=1, description="Fewest parts there should be; only with DoNotSchedule."
    )

    RULES: ClassVar = (
        Rule(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            lambda s: s.min_domains is None or s.when_unsatisfiable == "DoNotSchedule",
            "only with whenUnsatisfiable DoNotSchedule",
            "minDomains",
        ),
    )


class Toleration(ApiModel):
    """A taint that the pods accept."""

    key: LabelKey | None = Field(
        default=None, description="Key of the taint; any key when left out with Exists."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="Equal compares the value too; Equal when left out."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; all effects when left out."
    )
    toleration_seconds: int | None = Field(
        default=None, description="How long a NoExecute taint is accepted, in seconds."
    )
