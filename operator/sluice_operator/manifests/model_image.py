"""Containers that bring the model of an image into an engine's pod.

If the node can mount images, an init container links the files that an engine reads. Otherwise the
image itself runs once and copies them; it may have no shell, so the command is a static busybox. In
both cases the files are at `CLAIM_MOUNT`, and a script of the fetcher's image selects them.
"""

from __future__ import annotations

from typing import Final

from sluice_operator.api.environment import COPIER_VOLUME, IMAGE_MOUNT, IMAGE_VOLUME
from sluice_operator.api.model_uri import CLAIM_MOUNT
from sluice_operator.api.pool import ModelImage
from sluice_operator.api.template import COPIER_CONTAINER, COPY_CONTAINER, LINK_CONTAINER
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import GROUP_ID, MODEL_VOLUME
from sluice_operator.manifests.pods import CONTAINER_SECURITY, bringing_resources

SCRIPT: Final = "model_of_image.sh"
SCRIPT_IN_IMAGE: Final = f"/app/sluice_fetch/{SCRIPT}"
BUSYBOX_IN_IMAGE: Final = "/opt/copier/busybox"
COPIER_MOUNT: Final = "/sluice-copier"


def image_init_containers(model: ModelImage) -> list[Manifest]:
    """Init containers that bring the model, in the order in which they run."""
    if model.mounted:
        command = (BUSYBOX_IN_IMAGE, "sh", SCRIPT_IN_IMAGE, BUSYBOX_IN_IMAGE, "link", IMAGE_MOUNT)
        mounts = [_mount(MODEL_VOLUME, CLAIM_MOUNT), image_mount()]
        return [_container(LINK_CONTAINER, model, model.copier, (*command, CLAIM_MOUNT), mounts)]
    busybox = f"{COPIER_MOUNT}/busybox"
    first = (BUSYBOX_IN_IMAGE, "cp", BUSYBOX_IN_IMAGE, SCRIPT_IN_IMAGE, COPIER_MOUNT)
    then = (busybox, "sh", f"{COPIER_MOUNT}/{SCRIPT}", busybox, "copy", "/", CLAIM_MOUNT)
    copier = _mount(COPIER_VOLUME, COPIER_MOUNT)
    mounts = [copier | {"readOnly": True}, _mount(MODEL_VOLUME, CLAIM_MOUNT)]
    copying = _container(COPY_CONTAINER, model, model.reference, then, mounts)
    # The image of a model says nothing of users, or that it runs as root.
    copying["securityContext"] = CONTAINER_SECURITY | {"runAsUser": GROUP_ID}
    return [_container(COPIER_CONTAINER, model, model.copier, first, [copier]), copying]


def image_volumes(model: ModelImage) -> list[Manifest]:
    """The engine's own volume, and where its content comes from."""
    own: Manifest = {"name": MODEL_VOLUME, "emptyDir": {}}
    if model.mounted:
        return [own, {"name": IMAGE_VOLUME, "image": {"reference": model.reference}}]
    return [own, {"name": COPIER_VOLUME, "emptyDir": {}}]


def image_mount() -> Manifest:
    """Where the files of a mounted image appear."""
    return _mount(IMAGE_VOLUME, IMAGE_MOUNT) | {"readOnly": True}


def _container(
    name: str, model: ModelImage, image: str, command: tuple[str, ...], mounts: list[Manifest]
) -> Manifest:
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "resources": bringing_resources(model.resources),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _mount(volume: str, path: str) -> Manifest:
    return {"name": volume, "mountPath": path}
