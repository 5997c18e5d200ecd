"""Where a model and its adapters come from, by URI, and the URI that the engine gets instead.

Pure: whether the model exists is checked elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.adapters import claim_of
from sluice_operator.api.engine import ModelSpec

CLAIM_MOUNT: Final = "/mnt/model"
HUB: Final = "hf"
BUCKETS: Final = ("s3", "gs", "az")
FETCHED: Final = (HUB, *BUCKETS)
"""Schemes of models that are downloaded."""
SERVED_SCHEMES: Final = ("file", "dummy", "pvc", *FETCHED, "oci")
IMAGE: Final = "oci"


@dataclass(frozen=True)
class ModelSource:
    """How an engine pod gets at its model."""

    engine_uri: str
    served_name: str
    claim: str | None = None
    """PersistentVolumeClaim to mount at `CLAIM_MOUNT`."""


def scheme_of(uri: str) -> str:
    """The part of a URI before `://`."""
    return uri.partition("://")[0]


def model_source(model: ModelSpec) -> ModelSource:
    """The source of a model whose scheme is one of `SERVED_SCHEMES`. A downloaded model has to be
    pinned: its revision is a commit, and its cache a claim."""
    scheme, _, rest = model.uri.partition("://")
    assert scheme in SERVED_SCHEMES, f"{scheme} is refused before"
    claim = claim_of_model(model)
    if scheme in FETCHED:
        assert model.revision is not None, "a revision is resolved before"
        snapshot = snapshot_path(repository_of(model.uri), model.revision)
        return ModelSource(f"file://{CLAIM_MOUNT}/{snapshot}", model.served_name, claim)
    if scheme == IMAGE:
        return ModelSource(f"file://{CLAIM_MOUNT}", model.served_name)
    if scheme != "pvc":
        return ModelSource(model.uri, model.served_name)
    path = rest.strip("/").partition("/")[2]
    engine_uri = f"file://{CLAIM_MOUNT}/{path}".rstrip("/")
    return ModelSource(engine_uri, model.served_name, claim)


def claim_of_model(model: ModelSpec) -> str | None:
    """The claim with the model; None where it is on none. For a downloaded model, it is the claim
    of the cache, if that is named or the model is pinned."""
    scheme, _, rest = model.uri.partition("://")
    if scheme in FETCHED:
        return model.cache.claim if model.cache else None
    return rest.strip("/").partition("/")[0] if scheme == "pvc" else None


def adapter_claims(model: ModelSpec) -> list[str]:
    """The claims with adapters, except the model's, in order; `model` is pinned. A cache's claim is
    always included, so that its first adapter is served without a restart."""
    claims = {adapter.claim for adapter in model.adapters or ()}
    if model.cache is not None:
        claims.add(model.cache.claim)
    return sorted(claim for claim in claims - {claim_of_model(model)} if claim)


def draft_claim(uri: str | None, model: ModelSpec) -> str | None:
    """The claim with a draft model; None without one, or if it is the model's own."""
    claim = claim_of(uri or "")
    return claim if claim and claim != claim_of_model(model) else None


def repository_of(uri: str) -> str:
    """Name of the model at `uri` in a cache, as the fetcher names it."""
    scheme, _, rest = uri.partition("://")
    return rest if scheme == HUB else f"{scheme}/{rest.strip('/')}"


def snapshot_path(repository: str, commit: str) -> str:
    """The folder of a commit in a cache, in the layout of Hugging Face's."""
    return f"models--{repository.replace('/', '--')}/snapshots/{commit}"
