"""Label and annotation keys, and the values that more than one component reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "serving.sluice.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NAME: Final = "app.kubernetes.io/name"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

ROLE: Final = f"{GROUP}/role"
"""`mixed`, `prefill`, `decode`, `router` or `fetch`."""
REVISION: Final = f"{GROUP}/revision"
"""Hash of everything that changes the engine process of a pool."""
REVISION_VARIABLE: Final = "POOL_REVISION"
"""Environment variable in which an engine finds its pod's label `REVISION`."""
SERVICE: Final = f"{GROUP}/service"
"""Name of the InferenceService an object belongs to."""

FETCHES: Final = f"{GROUP}/fetches"
"""`true` on pods that download a model, and may therefore reach its hub."""

PART_OF_SLUICE: Final = "sluice"
MANAGED_BY_OPERATOR: Final = "sluice-operator"
FIELD_MANAGER: Final = "sluice-operator"


class Role(StrEnum):
    """What an engine does: both phases, or one of them."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


ROUTER_ROLE: Final = "router"
FETCH_ROLE: Final = "fetch"
"""Role of pods that download a model."""
