"""The key by which router and engines of one service authenticate each other: its Secret, and where
pods find it. The key is drawn when the Secret is created."""

from __future__ import annotations

from typing import Final

from sluice_operator.api.environment import CONFIG_FOLDER
from sluice_operator.kube.kinds import SECRET, Manifest
from sluice_operator.manifests.metadata import ENGINE, Owner

HANDOVER: Final = "handover"
HANDOVER_FOLDER: Final = f"{CONFIG_FOLDER}/{HANDOVER}"
KEY: Final = "key"
HANDOVER_KEY_FILE: Final = f"{HANDOVER_FOLDER}/{KEY}"


def handover_secret_name(service: str) -> str:
    """Name of the Secret with a service's key."""
    return f"{service}-{HANDOVER}"


def handover_secret(owner: Owner) -> Manifest:
    """The Secret without its key. Not immutable: its key can be rotated."""
    head = owner.child(SECRET, handover_secret_name(owner.service), ENGINE)
    return head | {"type": "Opaque"}


def mounts_handover_secret(deployment: Manifest) -> bool:
    """Whether the pods of a Deployment have the key. Those of earlier releases had none in mode
    Mixed."""
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume["name"] == HANDOVER for volume in volumes)


def handover_volumes(secret: str | None) -> list[Manifest]:
    """The volume with the key, for a pod with a Secret."""
    return [{"name": HANDOVER, "secret": {"secretName": secret}}] if secret else []


def handover_mounts(secret: str | None) -> list[Manifest]:
    """Where the key appears."""
    if not secret:
        return []
    return [{"name": HANDOVER, "mountPath": HANDOVER_FOLDER, "readOnly": True}]
