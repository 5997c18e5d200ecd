"""Models in container images: which container brings them, in one of two ways. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.model_uri import IMAGE, scheme_of
from sluice_operator.api.pool import ModelImage
from sluice_operator.kube.kinds import Manifest
from sluice_operator.validation.errors import INVALID, Refusal

PLACE: Final = "spec.model.uri"
FIRST_WITH_VOLUMES: Final = {"containerd": (2, 1), "cri-o": (1, 31)}
"""Container runtime → its first release that mounts images into pods."""


def is_image(model: ModelSpec) -> bool:
    """Whether a model is in a container image of its own."""
    return scheme_of(model.uri) == IMAGE


def has_digest(model: ModelSpec) -> bool:
    """Whether the image that holds a model is named by digest."""
    return "@sha256:" in model.uri


def image_refusal(model: ModelSpec, copier: str) -> Refusal | None:
    """Why no container can bring the model; None if one can, or none is needed."""
    if not is_image(model) or copier:
        return None
    allowed = "a model that is no image, as SLUICE_FETCH_IMAGE of the operator is not set"
    message = f"{PLACE}: {model.uri} is not allowed; allowed: {allowed}"
    return Refusal(INVALID, PLACE, message)


def model_image(model: ModelSpec, copier: str, *, mounted: bool) -> ModelImage | None:
    """The model image that each engine gets; None for a model that is not an image."""
    if not is_image(model):
        return None
    reference = model.uri.partition("://")[2]
    return ModelImage(
        reference=reference, copier=copier, mounted=mounted or None, resources=model.resources
    )


def nodes_mount_images(nodes: Sequence[Manifest] | None) -> bool:
    """Whether the container runtime of every node can mount images; unknown counts as no."""
    return bool(nodes) and all(map(_mounts_images, nodes or ()))


def _mounts_images(node: Manifest) -> bool:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    runtime = re.match(r"([-a-z]+)://v?(\d+)\.(\d+)", info.get("containerRuntimeVersion", ""))
    if runtime is None or runtime[1] not in FIRST_WITH_VOLUMES:
        return False
    return (int(runtime[2]), int(runtime[3])) >= FIRST_WITH_VOLUMES[runtime[1]]
