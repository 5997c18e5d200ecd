"""Label and annotation keys, and the values that more than one component reads."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

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

CANARY: Final = f"{GROUP}/canary"
"""Share of a canary, written as `CanaryShare.label`, on a pool's Service; Kubernetes copies it to
the EndpointSlices."""

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


class CanaryShare(NamedTuple):
    """Share of a service's requests that goes to a new revision, as one of its pools states it. In
    a pool that the roll-out does not change, the new revision is the former one."""

    revision: str
    """The pool's new revision, as its engines report it."""
    former: str
    """The pool's revision that has all other requests."""
    percent: int
    """0 to 99."""

    @property
    def label(self) -> str:
        """Value of the label `CANARY`: `REVISION.FORMER.PERCENT`."""
        return f"{self.revision}.{self.former}.{self.percent}"


def canary_share(label: str) -> CanaryShare | None:
    """Share that a label `CANARY` states; None for a value that is none."""
    parts = re.fullmatch(r"([a-z0-9]+)\.([a-z0-9]+)\.([1-9]?[0-9])", label)
    return CanaryShare(parts[1], parts[2], int(parts[3])) if parts else None
