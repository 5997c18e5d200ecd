"""Where a model comes from, and what the engine is told instead.

Understands the URI alone; whether the model is there, others find out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.engine import ModelSpec

CLAIM_MOUNT: Final = "/mnt/model"
SERVED_SCHEMES: Final = ("file", "dummy", "pvc", "hf", "oci")
HUB: Final = "hf"
IMAGE: Final = "oci"


@dataclass(frozen=True)
class ModelSource:
    """How an engine pod gets at its model."""

    engine_uri: str
    served_name: str
    claim: str | None = None
    """PersistentVolumeClaim to mount at `CLAIM_MOUNT`."""


def scheme_of(uri: str) -> str:
    """What stands before `://`."""
    return uri.partition("://")[0]


def model_source(model: ModelSpec) -> ModelSource:
    """The source of a model whose scheme is one of `SERVED_SCHEMES`; that of a hub is pinned: its
    revision is a commit, and its cache a claim."""
    scheme, _, rest = model.uri.partition("://")
    assert scheme in SERVED_SCHEMES, f"{scheme} is refused before"
    claim = claim_of_model(model)
    if scheme == HUB:
        return ModelSource(f"file://{_snapshot(rest, model.revision)}", model.served_name, claim)
    if scheme == IMAGE:
        return ModelSource(f"file://{CLAIM_MOUNT}", model.served_name)
    if scheme != "pvc":
        return ModelSource(model.uri, model.served_name)
    path = rest.strip("/").partition("/")[2]
    engine_uri = f"file://{CLAIM_MOUNT}/{path}".rstrip("/")
    return ModelSource(engine_uri, model.served_name, claim)


def claim_of_model(model: ModelSpec) -> str | None:
    """The claim that the model is on, if it is on one; that of a hub's cache, where it is named or
    the model is pinned."""
    scheme, _, rest = model.uri.partition("://")
    if scheme == HUB:
        return model.cache.claim if model.cache else None
    return rest.strip("/").partition("/")[0] if scheme == "pvc" else None


def _snapshot(repository: str, commit: str | None) -> str:
    """The folder of a commit, in the layout of Hugging Face's cache."""
    assert commit is not None, "a revision is resolved before"
    return f"{CLAIM_MOUNT}/models--{repository.replace('/', '--')}/snapshots/{commit}"
