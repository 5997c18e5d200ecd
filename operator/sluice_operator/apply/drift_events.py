"""Events about edits of children that were reverted: who owns the field, and where to change it.

Pure. The stamp of a child tells an edit from a change of plan. Children without a stamp are
corrected without an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import FIELD_MANAGER, ROUTER_ROLE

from sluice_operator.api.pools import section_of
from sluice_operator.apply.field_ownership import lost_fields
from sluice_operator.apply.plan import Event, Overwritten
from sluice_operator.apply.ssa_diff import changed_fields
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import is_current, stamp_of

REPLICAS: Final = "spec.replicas"
POOL_FIELDS: Final = {
    REPLICAS: "{section}.replicas",
    "spec.image": "spec.engine.image",
    "spec.configRef": "spec.engine or spec.model",
    "spec.modelClaim": "spec.model.uri",
    "spec.fetch": "spec.model",
    "spec.modelImage": "spec.model.uri",
    "spec.adaptersRef": "spec.model.adapters",
    "spec.adaptersDigest": "spec.model.adapters",
    "spec.adapterClaims": "spec.model.adapters",
    "spec.bootstrapPort": "spec.engine.kvTransfer.bootstrapPort",
    "spec.drainSeconds": "spec.engine.drainSeconds",
    "spec.startupSeconds": "spec.engine.startupSeconds",
    "spec.hostCache": "spec.engine.hostCache",
    "spec.rdmaResource": "spec.engine.kvTransfer.resourceName",
    "spec.inPlace": "spec.rollout.strategy",
    "spec.podSurge": "spec.autoscaling.gpuBudget",
    "spec.restartedAt": "spec.rollout.restartedAt",
    "spec.accelerator": "{section}.accelerator",
    "spec.resources": "{section}.resources",
    "spec.template": "{section}.template",
}
"""Field of an EnginePool → the field of the InferenceService that sets it."""


def repair_events(overwritten: Iterable[Overwritten]) -> tuple[Event, ...]:
    """One event on each child in which somebody's edit was overwritten."""
    events = (_event(item.desired, item.live) for item in overwritten)
    return tuple(event for event in events if event is not None)


def _event(desired: Manifest, live: Manifest) -> Event | None:
    if stamp_of(live) is None or not is_current(desired, live):
        return None
    fields = changed_fields(desired, live, FIELD_MANAGER)
    if not fields:
        return None
    reason = "ScaleReverted" if REPLICAS in fields else "Repaired"
    return Event("Warning", reason, _message(desired, live, fields), about=live)


def _message(desired: Manifest, live: Manifest, fields: tuple[str, ...]) -> str:
    head = f"{live['kind']} {live['metadata']['name']}"
    changes = ", ".join(_change(field, desired, live) for field in fields)
    managers = {manager for lost in lost_fields(desired, live) for manager in lost.managers}
    changes += f" by {', '.join(sorted(managers))}" if managers else ""
    places = dict.fromkeys(filter(None, (_place(field, desired) for field in fields)))
    service = f"{INFERENCE_SERVICE.kind} {desired['metadata']['labels'][labels.SERVICE]}"
    if not places:
        return f"{head}: {changes} set back: the operator keeps this as {service} asks."
    return f"{head}: {changes} set back: {service} owns this; change {', '.join(places)} there."


def _change(field: str, desired: Manifest, live: Manifest) -> str:
    if field != REPLICAS:
        return field
    before, now = live["spec"].get("replicas"), desired["spec"]["replicas"]
    return f"{field} (from {before} to {now})"


def _place(field: str, desired: Manifest) -> str | None:
    """The field of the InferenceService that sets it; None where there is no single one."""
    role = desired["metadata"]["labels"].get(labels.ROLE)
    section = "spec.router" if role == ROUTER_ROLE else section_of(role)
    if desired["kind"] == ENGINE_POOL.kind:
        place = POOL_FIELDS.get(field)
        return place and place.format(section=section)
    return f"{section}.replicas" if field == REPLICAS else None
