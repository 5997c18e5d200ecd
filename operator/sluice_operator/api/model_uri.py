"""Where a model comes from, and what the engine is told instead.

Understands the URI alone; whether the model is there, the engine finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.engine import ModelSpec

CLAIM_MOUNT: Final = "/mnt/model"
SERVED_SCHEMES: Final = ("file", "dummy", "pvc")


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
    """The source of a model whose scheme is one of `SERVED_SCHEMES`."""
    scheme, _, rest = model.uri.partition("://")
    assert scheme in SERVED_SCHEMES, f"{scheme} is refused before"
    if scheme != "pvc":
        return ModelSource(model.uri, model.served_name)
    claim, _, path = rest.strip("/").partition("/")
    engine_uri = f"file://{CLAIM_MOUNT}/{path}".rstrip("/")
    return ModelSource(engine_uri, model.served_name, claim)
