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


def handover_volume(secret: str) -> Manifest:
    """The volume with the key."""
    return {"name": HANDOVER, "secret": {"secretName": secret}}


def handover_mount() -> Manifest:
    """The mount of the hand-over's key."""
    return {"name": HANDOVER, "mountPath": HANDOVER_FOLDER, "readOnly": True}
