"""Additions of a user to pods of engines and routers: a typed subset of the pod template.

Security context, probes, ports, identity and the containers' own mounts stay the operator's.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal

from pydantic import Field
from sluice_contract.cluster.labels import GROUP, ROUTER_ROLE
from sluice_contract.log_lines import shown_json

from sluice_operator.api.base import (
    ATOMIC,
    CRD_DEFAULT,
    LABEL_KEY,
    ApiModel,
    DnsLabel,
    DnsName,
    Image,
    LabelValue,
    LocalRef,
    Resources,
    Rule,
    ShortText,
    list_map,
)
from sluice_operator.api.environment import EnvVar, Volume, VolumeMount
from sluice_operator.api.scheduling import Affinity, NodeAffinity, Toleration, TopologySpread

ENGINE_CONTAINER: Final = "engine"
FETCH_CONTAINER: Final = "fetch-model"
COPIER_CONTAINER: Final = "model-copier"
COPY_CONTAINER: Final = "copy-model"
LINK_CONTAINER: Final = "link-model"
MAX_LABELS: Final = 32
RESERVED_CONTAINERS: Final = (
    ENGINE_CONTAINER, ROUTER_ROLE, FETCH_CONTAINER, COPIER_CONTAINER, COPY_CONTAINER,
    LINK_CONTAINER,
)  # fmt: skip


class ContainerPort(ApiModel):
    """A port that a sidecar listens on."""

    name: DnsLabel | None = Field(default=None, description="Name of the port.")
    container_port: int = Field(ge=1, le=65535, description="Port number.")
    protocol: Literal["TCP", "UDP"] = Field(
        default="TCP", json_schema_extra=CRD_DEFAULT, description="Protocol."
    )


class Sidecar(ApiModel):
    """A container in addition to the operator's own, under the same restricted security context."""

    name: DnsLabel = Field(description="Name of the container.")
    image: Image = Field(description="Container image.")
    command: list[ShortText] | None = Field(
        default=None, max_length=64, json_schema_extra=ATOMIC, description="Entry point."
    )
    args: list[ShortText] | None = Field(
        default=None, max_length=64, json_schema_extra=ATOMIC, description="Arguments."
    )
    env: list[EnvVar] | None = Field(
        default=None,
        max_length=64,
        json_schema_extra=list_map("name"),
        description="Environment variables.",
    )
    ports: list[ContainerPort] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra=list_map("containerPort", "protocol"),
        description="Ports it listens on.",
    )
    resources: Resources | None = Field(default=None, description="Requests and limits.")
    volume_mounts: list[VolumeMount] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=list_map("mountPath"),
        description="Volumes it sees.",
    )

    RULES: ClassVar = (
        Rule(
            f"!(self.name in {list(RESERVED_CONTAINERS)})",
            lambda s: s.name not in RESERVED_CONTAINERS,
            f"all but {', '.join(RESERVED_CONTAINERS)}, the operator's containers",
            "name",
        ),
    )


def _with_label_keys(name: str, field: str) -> Rule:
    def wrong(template: Any) -> list[str]:
        keys = getattr(template, name) or ()
        return [shown_json(key) for key in keys if not re.fullmatch(LABEL_KEY, key)]

    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, k.matches('{LABEL_KEY}'))",
        lambda template: not wrong(template),
        "keys like example.com/name or name",
        field,
        lambda template: f"names of at most 63 characters, unlike {', '.join(wrong(template))}",
    )


def _with_volumes(name: str, field: str) -> Rule:
    def holds(template: Any) -> bool:
        mounts = (
            m for container in getattr(template, name) or () for m in container.volume_mounts or ()
        )
        return {m.name for m in mounts} <= {v.name for v in template.volumes or ()}

    return Rule(
        f"!has(self.{field}) || self.{field}.all(s, !has(s.volumeMounts) || "
        "s.volumeMounts.all(m, has(self.volumes) && "
        "self.volumes.exists(v, v.name == m.name)))",
        holds,
        "only mounts of volumes that template.volumes names",
        field,
    )


_OURS_CEL: Final = f"k.startsWith('app.kubernetes.io/') || k.startsWith('{GROUP}/')"


def _is_ours(key: str) -> bool:
    return key.startswith(("app.kubernetes.io/", f"{GROUP}/"))


class PodAdditions(ApiModel):
    """Additions to pods, of engines or of routers."""

    annotations: dict[str, ShortText] | None = Field(
        default=None, max_length=32, description="Annotations of the pods."
    )
    labels: dict[str, LabelValue] | None = Field(
        default=None,
        max_length=MAX_LABELS,
        description="Labels of the pods, in addition to the operator's.",
    )
    node_selector: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels a node must have."
    )
    tolerations: list[Toleration] | None = Field(
        default=None, max_length=32, json_schema_extra=ATOMIC, description="Taints accepted."
    )
    topology_spread_constraints: list[TopologySpread] | None = Field(
        default=None,
        max_length=8,
        json_schema_extra=list_map("topologyKey", "whenUnsatisfiable"),
        description="How the pods of a revision spread. Left out: over nodes, where possible.",
    )
    scheduler_name: DnsName | None = Field(
        default=None, description="Scheduler of the pods; the cluster's own when left out."
    )
    fs_group: int | None = Field(
        default=None, ge=1, le=2_147_483_647, description="Group that owns the pods' volumes."
    )
    priority_class_name: DnsName | None = Field(
        default=None, description="PriorityClass of the pods."
    )
    runtime_class_name: DnsName | None = Field(
        default=None, description="RuntimeClass of the pods, e.g. nvidia."
    )
    image_pull_secrets: list[LocalRef] | None = Field(
        default=None,
        max_length=8,
        json_schema_extra=list_map("name"),
        description="Secrets with which the images are pulled.",
    )
    env: list[EnvVar] | None = Field(
        default=None,
        max_length=64,
        json_schema_extra=list_map("name"),
        description="Environment variables in addition to the operator's.",
    )
    volumes: list[Volume] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=list_map("name"),
        description="Volumes of the pods.",
    )
    volume_mounts: list[VolumeMount] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=list_map("mountPath"),
        description="Volumes that the engine, or the router, sees.",
    )
    sidecars: list[Sidecar] | None = Field(
        default=None,
        max_length=4,
        json_schema_extra=list_map("name"),
        description="Containers in addition to the operator's.",
    )
    RULES: ClassVar[tuple[Rule, ...]] = (
        _with_label_keys("annotations", "annotations"),
        _with_label_keys("node_selector", "nodeSelector"),
        _with_label_keys("labels", "labels"),
        Rule(
            f"!has(self.labels) || !self.labels.exists(k, {_OURS_CEL})",
            lambda s: not any(map(_is_ours, s.labels or ())),
            f"all but labels of {GROUP} and app.kubernetes.io, which are the operator's",
            "labels",
        ),
        Rule(
            "!has(self.volumeMounts) || self.volumeMounts.all(m, has(self.volumes) && "
            "self.volumes.exists(v, v.name == m.name))",
            lambda s: {m.name for m in s.volume_mounts or ()} <= {v.name for v in s.volumes or ()},
            "only mounts of volumes that template.volumes names",
            "volumeMounts",
        ),
        _with_volumes("sidecars", "sidecars"),
    )


class PodTemplate(PodAdditions):
    """Additions to a pool's pods."""

    affinity: Affinity | None = Field(
        default=None, description="Rules on nodes and neighbouring pods."
    )
    init_containers: list[Sidecar] | None = Field(
        default=None,
        max_length=4,
        json_schema_extra=list_map("name"),
        description="Containers that end before the engine starts.",
    )

    RULES: ClassVar = (*PodAdditions.RULES, _with_volumes("init_containers", "initContainers"))


class RouterAffinity(ApiModel):
    """Rules on the nodes of routers."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Rules on nodes.")


class RouterTemplate(PodAdditions):
    """Additions to the routers' pods."""

    affinity: RouterAffinity | None = Field(default=None, description="Rules on nodes.")
