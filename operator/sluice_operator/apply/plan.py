"""The decision of a reconcile: what to write, what to delete, and which events to record.

Everything here is frozen. The planners make these, the executor carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from sluice_contract.cluster.labels import FIELD_MANAGER

from sluice_operator.kube.kinds import Manifest, Reference
from sluice_operator.validation.errors import Refusal

REPLICAS_MANAGER: Final = f"{FIELD_MANAGER}-replicas"
"""Field manager of a pool's replicas while its InferenceService does not set them."""


class Identity(NamedTuple):
    """Key of an object within one namespace."""

    kind: str
    name: str


def identity(manifest: Manifest) -> Identity:
    """The identity of an object."""
    return Identity(manifest["kind"], manifest["metadata"]["name"])


@dataclass(frozen=True)
class Event:
    """A Kubernetes event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: Manifest | None = None
    """The object it is recorded on; None: the reconciled one."""
    written: tuple[Identity, ...] = ()
    """Objects whose write this event reports; if one was not written, the event is not recorded."""


@dataclass(frozen=True)
class Overwritten:
    """An existing object, `live`, that was changed to what is `desired`."""

    desired: Manifest
    live: Manifest
    paths: Mapping[str, str] = field(default_factory=dict)
    """Fields of the object → the fields of the InferenceService that set them."""


@dataclass(frozen=True)
class KeySecret:
    """A Secret with a random key, which the operator may create and never reads."""

    manifest: Manifest
    """Secret's manifest without the key."""
    key: str
    """Name of the key in the Secret's data."""
    waiting: str
    """Hash of the state in which pods may wait for the Secret, which is requested once per
    state. Empty: no pod waits."""
    is_used: bool = False
    """Whether pods have started with it: it exists, unless somebody has deleted it since."""
    is_lost: bool = False
    """Set: children of its owner have lost their owner references, and it may have, too."""


@dataclass(frozen=True)
class Adoption:
    """A live object that stays as it is, and gets its owner back."""

    live: Manifest
    owners: tuple[Manifest, ...]
    """All of its owner references, the new one included."""


@dataclass(frozen=True)
class Plan:
    """Everything to write. Level-triggered: equal observations give equal plans."""

    secrets: tuple[KeySecret, ...] = ()
    """Secrets that must exist before anything else is written."""
    decided: Manifest | None = None
    """Decisions about the object, for later plans; written before anything that follows from
    them."""
    decision_events: tuple[Event, ...] = ()
    """Events about `decided`, recorded once that is written, also if a later write fails."""
    apply: tuple[Manifest, ...] = ()
    """Full desired objects without status, owner references set; to be applied in this order."""
    take_over: tuple[Manifest, ...] = ()
    """Live values that `REPLICAS_MANAGER` takes over before `apply` lets go of them."""
    let_go: tuple[Manifest, ...] = ()
    """Fields that `REPLICAS_MANAGER` keeps of each object, after `apply` has set the rest."""
    adopt: tuple[Adoption, ...] = ()
    """Children of ours without an owner that are not in `apply`."""
    prune: tuple[Reference, ...] = ()
    """Children of ours that are no longer desired, to be deleted after everything was applied."""
    record: Manifest | None = None
    """Record of what was carried out, for later plans. Applied once everything that makes pods is
    as planned; the object works without it."""
    events: tuple[Event, ...] = ()
    """Events, recorded when this plan is carried out; empty once nothing changes."""
    refusal: Refusal | None = None
    """Set: why the spec is not carried out. The plan then keeps what exists."""
    paused: bool = False
    """Set: nothing is written but status."""
    paths: Mapping[Identity, Mapping[str, str]] = field(default_factory=dict)
    """Fields of planned objects → the fields of the InferenceService that set them, for events
    about edits."""


def is_destructive(plan: Plan, children: Iterable[Manifest]) -> bool:
    """Whether `plan` ends engines or routers, deletes something, or moves a field to another owner:
    what another apply could not undo."""
    if plan.prune or plan.take_over or plan.let_go:
        return True
    before = {identity(child): child for child in children}
    return any(
        is_less(desired, live)
        for desired in plan.apply
        if (live := before.get(identity(desired))) is not None
    )


def is_less(desired: Manifest, live: Manifest) -> bool:
    """Whether `desired` asks for fewer pods than `live`, in all or of one revision. An object
    without a total leaves the total to its other owner, and only its revisions are compared."""
    after = _counts(desired)
    return any(
        after.get(revision, 0 if after and revision else count) < count
        for revision, count in _counts(live).items()
    )


def _counts(manifest: Manifest) -> Mapping[str, int]:
    """How many pods an object asks for, in all and of each revision."""
    spec = manifest.get("spec") or {}
    counts = {share["name"]: share["replicas"] for share in spec.get("revisions") or ()}
    return counts | {"": spec["replicas"]} if "replicas" in spec else counts
