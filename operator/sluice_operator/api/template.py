"""What a user may add to a pool's pods: a typed subset of the pod template.

Security context, probes, ports, identity and the engine's own mounts stay the operator's.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from sluice_operator.api.base import (
    ATOMIC,
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
from sluice_operator.api.scheduling import Affinity, Toleration

ENGINE_CONTAINER: Final = "engine"


class ContainerPort(ApiModel):
    """A port that a sidecar listens on."""

    name: DnsLabel | None = Field(default=None, description="Name of the port.")
    container_port: int = Field(ge=1, le=65535, description="Port number.")
    protocol: Literal["TCP", "UDP"] = Field(default="TCP", description="Protocol.")


class Sidecar(ApiModel):
    """A container beside the engine. It runs under the same restricted security context."""

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
        default=None, max_length=16, json_schema_extra=ATOMIC, description="Ports it listens on."
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
            f"self.name != '{ENGINE_CONTAINER}'",
            lambda s: s.name != ENGINE_CONTAINER,
            f"all but {ENGINE_CONTAINER}, the operator's container",
            "name",
        ),
    )


def _with_label_keys(name: str, field: str) -> Rule:
    def holds(template: Any) -> bool:
        return all(re.fullmatch(LABEL_KEY, key) for key in getattr(template, name) or ())

    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, k.matches('{LABEL_KEY}'))",
        holds,
        "keys like example.com/name or name",
        field,
    )


class PodTemplate(ApiModel):
    """Additions to a pool's pods."""

    annotations: dict[str, ShortText] | None = Field(
        default=None, max_length=32, description="Annotations of the pods."
    )
    node_selector: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels a node must have."
    )
    affinity: Affinity | None = Field(
        default=None, description="Rules on nodes and neighbouring pods."
    )
    tolerations: list[Toleration] | None = Field(
        default=None, max_length=32, json_schema_extra=ATOMIC, description="Taints accepted."
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
        description="Environment variables of the engine.",
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
        description="Volumes the engine sees.",
    )
    sidecars: list[Sidecar] | None = Field(
        default=None,
        max_length=4,
        json_schema_extra=list_map("name"),
        description="Containers beside the engine.",
    )

    RULES: ClassVar = (
        _with_label_keys("annotations", "annotations"),
        _with_label_keys("node_selector", "nodeSelector"),
        Rule(
            "!has(self.volumeMounts) || self.volumeMounts.all(m, has(self.volumes) && "
            "self.volumes.exists(v, v.name == m.name))",
            lambda s: {m.name for m in s.volume_mounts or ()} <= {v.name for v in s.volumes or ()},
            "only mounts of volumes that template.volumes names",
            "volumeMounts",
        ),
        Rule(
            "!has(self.sidecars) || self.sidecars.all(s, !has(s.volumeMounts) || "
            "s.volumeMounts.all(m, has(self.volumes) && "
            "self.volumes.exists(v, v.name == m.name)))",
            lambda s: (
                {m.name for sidecar in s.sidecars or () for m in sidecar.volume_mounts or ()}
                <= {v.name for v in s.volumes or ()}
            ),
            "only mounts of volumes that template.volumes names",
            "sidecars",
        ),
    )
