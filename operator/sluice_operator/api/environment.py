"""Environment variables and volumes that a user may add to containers.

The kinds of volumes are those the restricted Pod Security Standard allows.
"""

from __future__ import annotations

import posixpath
from typing import ClassVar, Final, Literal

from pydantic import Field
from sluice_contract.cluster.labels import REVISION_VARIABLE

from sluice_operator.api.base import (
    ATOMIC,
    ApiModel,
    DnsLabel,
    DnsName,
    FilePath,
    Quantity,
    Rule,
    SecretKeyRef,
    ShortText,
)

RESERVED_ENV: Final = ("POD_IP", "POD_NAME", "POD_NAMESPACE", REVISION_VARIABLE)
COPIER_VOLUME: Final = "model-copier"
IMAGE_VOLUME: Final = "model-image"
IMAGE_MOUNT: Final = "/mnt/model-image"
ADAPTERS_VOLUME: Final = "sluice-adapters"
"""Volume with the file of adapters. Followed by a number: the volume of a claim with adapters."""
HUB_CA_VOLUME: Final = "sluice-hub-ca"
API_KEYS_VOLUME: Final = "sluice-api-keys"
HOST_CACHE_VOLUME: Final = "sluice-host-cache"
"""Name of the volume where `engine.hostCache` has a disk; elsewhere users may have this name."""
RESERVED_VOLUMES: Final = (
    "config", "handover", "hub-token", "model", COPIER_VOLUME, IMAGE_VOLUME, "shm",
    API_KEYS_VOLUME, HUB_CA_VOLUME, "tmp",
)  # fmt: skip
CONFIG_FOLDER: Final = "/etc/sluice"
"""Folder of the configuration; the hand-over's key and the adapters are mounted below it."""
RESERVED_MOUNTS: Final = (CONFIG_FOLDER, "/mnt/model", IMAGE_MOUNT, "/dev/shm", "/tmp")  # noqa: S108


def _cel_list(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


class ConfigMapKeyRef(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: DnsName = Field(description="Name of the ConfigMap.")
    key: str = Field(min_length=1, max_length=253, description="Key within the ConfigMap.")


class FieldRef(ApiModel):
    """A field of the pod itself."""

    field_path: str = Field(
        min_length=1, max_length=253, description="Path of the field, e.g. spec.nodeName."
    )


class EnvSource(ApiModel):
    """Where an environment variable's value comes from."""

    config_map_key_ref: ConfigMapKeyRef | None = Field(
        default=None, description="A key of a ConfigMap."
    )
    secret_key_ref: SecretKeyRef | None = Field(default=None, description="A key of a Secret.")
    field_ref: FieldRef | None = Field(default=None, description="A field of the pod.")

    RULES: ClassVar = (
        Rule(
            "[has(self.configMapKeyRef), has(self.secretKeyRef), has(self.fieldRef)]"
            ".filter(x, x).size() == 1",
            lambda s: (
                sum(x is not None for x in (s.config_map_key_ref, s.secret_key_ref, s.field_ref))
                == 1
            ),
            "exactly one of configMapKeyRef, secretKeyRef and fieldRef",
        ),
    )


class EnvVar(ApiModel):
    """One environment variable."""

    name: str = Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the variable.",
    )
    value: ShortText | None = Field(default=None, description="Its value.")
    value_from: EnvSource | None = Field(
        default=None, description="Source of its value, instead of value."
    )

    RULES: ClassVar = (
        Rule(
            f"!(self.name in {_cel_list(RESERVED_ENV)})",
            lambda s: s.name not in RESERVED_ENV,
            f"all but {', '.join(RESERVED_ENV)}, which the operator sets",
            "name",
        ),
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            lambda s: s.value is None or s.value_from is None,
            "value or valueFrom, not both",
        ),
    )


class KeyToPath(ApiModel):
    """A key and the file it becomes."""

    key: str = Field(min_length=1, max_length=253, description="Key to project.")
    path: str = Field(min_length=1, max_length=512, description="Relative path of the file.")


class EmptyDirVolume(ApiModel):
    """Scratch space that is deleted with the pod."""

    medium: Literal["", "Memory"] | None = Field(
        default=None, description="Memory for tmpfs; the node's disk when left out."
    )
    size_limit: Quantity | None = Field(default=None, description="Largest size, e.g. 1Gi.")


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim of the same namespace."""

    claim_name: DnsName = Field(description="Name of the claim.")
    read_only: bool | None = Field(default=None, description="Mount it read-only everywhere.")


class ConfigMapVolume(ApiModel):
    """A ConfigMap as files."""

    name: DnsName = Field(description="Name of the ConfigMap.")
    items: list[KeyToPath] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Keys to project; all of them when left out.",
    )


class SecretVolume(ApiModel):
    """A Secret as files."""

    secret_name: DnsName = Field(description="Name of the Secret.")
    items: list[KeyToPath] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=ATOMIC,
        description="Keys to project; all of them when left out.",
    )


class Volume(ApiModel):
    """A volume of the pod. The kinds are those the restricted Pod Security Standard allows."""

    name: DnsLabel = Field(description="Name that mounts refer to.")
    empty_dir: EmptyDirVolume | None = Field(default=None, description="Scratch space.")
    persistent_volume_claim: ClaimVolume | None = Field(
        default=None, description="A PersistentVolumeClaim."
    )
    config_map: ConfigMapVolume | None = Field(default=None, description="A ConfigMap as files.")
    secret: SecretVolume | None = Field(default=None, description="A Secret as files.")

    RULES: ClassVar = (
        Rule(
            f"!(self.name in {_cel_list(RESERVED_VOLUMES)}) && "
            f"!self.name.startsWith('{ADAPTERS_VOLUME}')",
            lambda s: s.name not in RESERVED_VOLUMES and not s.name.startswith(ADAPTERS_VOLUME),
            f"all but {', '.join(RESERVED_VOLUMES)} and what begins with {ADAPTERS_VOLUME}, which "
            "are the operator's",
            "name",
        ),
        Rule(
            "[has(self.emptyDir), has(self.persistentVolumeClaim), has(self.configMap), "
            "has(self.secret)].filter(x, x).size() == 1",
            lambda s: (
                sum(
                    x is not None
                    for x in (s.empty_dir, s.persistent_volume_claim, s.config_map, s.secret)
                )
                == 1
            ),
            "exactly one of emptyDir, persistentVolumeClaim, configMap and secret",
        ),
    )


class VolumeMount(ApiModel):
    """Where a volume appears in a container."""

    name: DnsLabel = Field(description="Name of the volume, from template.volumes.")
    mount_path: FilePath = Field(description="Absolute path in the container.")
    sub_path: str | None = Field(
        default=None, max_length=512, description="Path within the volume; its root when left out."
    )
    read_only: bool | None = Field(default=None, description="Mount it read-only.")

    RULES: ClassVar = (
        Rule(
            f"!(self.mountPath in {_cel_list(RESERVED_MOUNTS)}) && "
            f"!self.mountPath.startsWith('{CONFIG_FOLDER}/')",
            lambda s: (
                s.folder not in RESERVED_MOUNTS and not s.folder.startswith(f"{CONFIG_FOLDER}/")
            ),
            f"all but {', '.join(RESERVED_MOUNTS)} and what is below {CONFIG_FOLDER}, which are "
            "the operator's",
            "mountPath",
        ),
    )

    @property
    def folder(self) -> str:
        """The path, normalised; the API server's rule compares it as it is spelled."""
        return posixpath.normpath(f"/{self.mount_path.lstrip('/')}")
