"""The specs with which a service was complete, for `sluice rollout undo`.

Pure. A spec is recorded when the status says that all of it is ready, so undo never goes back to a
failed one. The last ones are kept, each once; the newest is in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.conditions import UPDATED
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find
from sluice_operator.delivery.resolved_model import spec_with_commit
from sluice_operator.kube.kinds import CONFIG_MAP, CONTROLLER_REVISION, Manifest
from sluice_operator.manifests.metadata import Owner
from sluice_operator.manifests.spec_history import (
    applied_name,
    by_number,
    recorded_spec,
    spec_revision,
)
from sluice_operator.service.observe import Children

MAX_SPECS: Final = 5


@dataclass(frozen=True)
class History:
    """What is written of it, and what stays as it is."""

    newest: tuple[Manifest, ...]
    """To be applied: the ControllerRevision of a spec that is complete."""
    kept: frozenset[tuple[str, str]]
    """Kind and name of what stays."""


def plan_history(service: Manifest, children: Children, top: Owner) -> History:
    """The history of an InferenceService, as its status and the live objects have it."""
    there = {item["metadata"]["name"]: item for item in by_number(children)}
    if not _is_complete(service):
        return History((), _kept(top, list(there)[-MAX_SPECS:]))
    last = max((item["revision"] for item in there.values()), default=0)
    newest = spec_revision(top, spec_with_commit(service), last + 1)
    name = newest["metadata"]["name"]
    if (recorded := there.pop(name, None)) is not None:
        # Its data can never be changed; the spec may have other numbers.
        number = last + (recorded["revision"] < last)
        newest = spec_revision(top, recorded_spec(recorded), number)
    return History((newest,), _kept(top, [*list(there)[1 - MAX_SPECS :], name]))


def _kept(top: Owner, names: list[str]) -> frozenset[tuple[str, str]]:
    record = (CONFIG_MAP.kind, applied_name(top.service))
    return frozenset((record, *((CONTROLLER_REVISION.kind, name) for name in names)))


def _is_complete(service: Manifest) -> bool:
    """Whether all that the spec asks for has worked."""
    updated = find(service.get("status"), UPDATED) or {}
    stated = (updated.get("status"), updated.get("reason"), updated.get("observedGeneration"))
    return stated == ("True", reasons.ALL_READY, service["metadata"].get("generation"))
