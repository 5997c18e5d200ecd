"""ControllerRevisions of a service. Pure.

The present one is written before anything follows from it, and again with what was learnt about it
later. Former ones stay for a while, so that engines that still exist are known, and `sluice rollout
undo` finds complete revisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_operator.api.conditions import UPDATED
from sluice_operator.apply.plan import Identity
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import CONTROLLER_REVISION, Manifest
from sluice_operator.manifests.metadata import Owner
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.revisions.revision import Revision, Revisions

MAX_COMPLETE: Final = 5
"""Revisions to which a roll-out can be undone, the present one included."""
MAX_NOTED_BYTES: Final = 200_000
"""Largest spec that is stored in an annotation; all annotations of an object may have 262,144
bytes."""
MAX_OTHERS: Final = 3
"""Kept revisions that were never complete."""


@dataclass(frozen=True)
class RevisionHistory:
    """Revisions to write, and revisions to keep."""

    decided: Manifest | None
    """The ControllerRevision to write before all else; None: it is there, and no more was learnt
    of its canary."""
    record: Manifest
    """The ControllerRevision to write once it is carried out."""
    kept: frozenset[Identity]


def plan_history(
    service: Manifest,
    top: Owner,
    there: Revisions,
    present: Revision,
    stable: Mapping[Role, str],
    written: Manifest | None,
    canary: CanaryState | None = None,
) -> RevisionHistory:
    """The history once `present` is carried out. `stable`: the engines that are complete now or
    were last; `written`: the present spec, where `present` is its revision; `canary`: its
    canary with what was learnt since it was read."""
    live = next((revision for revision in there.all if revision.name == present.name), None)
    newest = next(there.newest_first, None)
    number = present.number if live is newest else there.next_number
    present = replace(present, number=number)
    is_there = live is not None and live.number == number
    before = replace(
        present.state,
        # A revision that comes back was carried out before, but is not carried out now.
        carried_out=present.state.carried_out and is_there,
        canary=there.canary_of(present),
        stable={role.value: name for role, name in there.stable.items()},
    )
    if written is not None and not is_there:
        before = replace(before, spec=_other(present, written))
    after = replace(
        before,
        carried_out=True,
        canary=canary or before.canary,
        complete=before.complete or (written is not None and _is_complete(service)),
        stable={role.value: name for role, name in sorted(stable.items())},
    )
    if written is not None:
        after = replace(after, spec=_other(present, written))
    # A verdict on a canary must not wait for writes that are refused.
    first = replace(before, canary=after.canary)
    return RevisionHistory(
        decided=None
        if is_there and canary is None
        else replace(present, state=first).to_manifest(top),
        record=replace(present, state=after).to_manifest(top),
        kept=frozenset(
            Identity(CONTROLLER_REVISION.kind, name) for name in {*_kept(there), present.name}
        ),
    )


def _kept(there: Revisions) -> Iterator[str]:
    complete = [revision.name for revision in there.all if revision.state.complete]
    others = [revision.name for revision in there.all if not revision.state.complete]
    yield from complete[-MAX_COMPLETE:]
    yield from others[-MAX_OTHERS:]
    for revision in there.all:
        if any(pool.engines in there.engines for pool in revision.pools.values()):
            yield revision.name


def _other(present: Revision, written: Manifest) -> Manifest | None:
    """The present spec, if it differs from the spec that the revision was made of. None also for a
    spec too large for an annotation: the revision's own spec is used instead."""
    if written == present.made_of or len(json.dumps(written)) > MAX_NOTED_BYTES:
        return None
    return written


def _is_complete(service: Manifest) -> bool:
    """Whether all that the spec asks for has worked."""
    updated = find(service.get("status"), UPDATED) or {}
    stated = (updated.get("status"), updated.get("reason"), updated.get("observedGeneration"))
    return stated == ("True", reasons.ALL_READY, service["metadata"].get("generation"))
