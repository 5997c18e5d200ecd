"""Events about edits of children that were reverted: who owns the field, and where to change it.

Pure. The stamp of a child distinguishes an edit from a change of plan. Children without a stamp are
corrected without an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import FIELD_MANAGER

from sluice_operator.apply.field_ownership import lost_fields
from sluice_operator.apply.plan import Event, Overwritten
from sluice_operator.apply.ssa_diff import changed_fields
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import is_current, stamp_of

REPLICAS: Final = "spec.replicas"


def repair_events(overwritten: Iterable[Overwritten]) -> tuple[Event, ...]:
    """One event on each child in which somebody's edit was overwritten."""
    events = (_event(item) for item in overwritten)
    return tuple(event for event in events if event is not None)


def _event(item: Overwritten) -> Event | None:
    desired, live = item.desired, item.live
    if stamp_of(live) is None or not is_current(desired, live):
        return None
    fields = changed_fields(desired, live, FIELD_MANAGER)
    if not fields:
        return None
    reason = "ScaleReverted" if REPLICAS in fields else "Repaired"
    return Event("Warning", reason, _message(item, fields), about=live)


def _message(item: Overwritten, fields: tuple[str, ...]) -> str:
    desired, live = item.desired, item.live
    head = f"{live['kind']} {live['metadata']['name']}"
    changes = ", ".join(_change(field, desired, live) for field in fields)
    managers = {manager for lost in lost_fields(desired, live) for manager in lost.managers}
    changes += f" by {', '.join(sorted(managers))}" if managers else ""
    places = dict.fromkeys(item.paths[field] for field in fields if field in item.paths)
    service = f"{INFERENCE_SERVICE.kind} {desired['metadata']['labels'][labels.SERVICE]}"
    if not places:
        return f"{head}: {changes} set back: the operator keeps this as {service} asks."
    return f"{head}: {changes} set back: {service} owns this; change {', '.join(places)} there."


def _change(field: str, desired: Manifest, live: Manifest) -> str:
    if field != REPLICAS:
        return field
    before, now = live["spec"].get("replicas"), desired["spec"]["replicas"]
    return f"{field} (from {before} to {now})"
