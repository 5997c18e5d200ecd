"""Which spec a service is planned by: the present one, or the last one carried out while the
present one is refused or waits for its model.

Pure. The delivery of model and adapters is decided with it, because engines are made of what
exists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import FETCH_ROLE

from sluice_operator.api.canonical import canonical
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec, mode_of, roles_of
from sluice_operator.apply.plan import Identity, identity
from sluice_operator.conditions import reasons
from sluice_operator.delivery.adapters import AdapterDelivery, awaiting_draft
from sluice_operator.delivery.delivery import NO_DELIVERY, Delivery
from sluice_operator.delivery.resolved_model import (
    hub_draft,
    pinned,
    pinned_at,
    spec_with_commit,
)
from sluice_operator.kube.kinds import ENGINE_POOL, JOB, Manifest, of_kind
from sluice_operator.manifests.metadata import Owner
from sluice_operator.manifests.spec_history import FORMER_MODE_FILE, applied_record, spec_in_record
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.resolve.last_applied import last_applied
from sluice_operator.service.resolve.model import adapters_of, delivery_of, kept_delivery
from sluice_operator.service.resolve.pools import contradictions
from sluice_operator.validation.errors import Refusal, invalid, joined, validation_errors


@dataclass(frozen=True)
class PlannedSpec:
    """A spec without contradictions, and what it needs beside its children."""

    spec: InferenceServiceSpec
    """With the commit of its model."""
    adapters: AdapterDelivery
    brought: tuple[Manifest, ...]
    """What brings its model and adapters, and the model that is awaited."""
    stays: frozenset[Identity] = frozenset()
    """What is not pruned, though nothing asks for it."""
    record: Manifest | None = None
    """Of the spec, to be written once it was carried out."""


@dataclass(frozen=True)
class SpecDecision:
    """What is planned, and why it is not the present spec."""

    planned: PlannedSpec | None = None
    """None: the present spec is not carried out, and no former one is known."""
    delivery: Delivery = NO_DELIVERY
    """How far the model of the present spec is on its way."""
    refusal: Refusal | None = None
    """Set: the present spec is refused."""
    is_paused: bool = False


def decide_spec(observed: ServiceObserved, top: Owner) -> SpecDecision:
    """The present spec where it is valid and its model is there; else the last one."""
    service, check = observed.service, partial(contradictions, observed)
    try:
        present = canonical(parse(InferenceServiceSpec, service.get("spec") or {}, "spec"))
    except InvalidSpecError as error:
        return _last(observed, top, SpecDecision(refusal=joined(invalid(error, check))))
    spec = pinned(present, service)
    if errors := validation_errors(spec, check):
        return _last(observed, top, SpecDecision(refusal=joined(errors)))
    record = _record(observed, top)
    conflicts = tuple(c for c in observed.name_conflicts if identity(c) != identity(record))
    if conflicts and not spec.paused:
        refusal = _name_taken(conflicts)
        return _last(observed, top, SpecDecision(refusal=refusal))
    delivery = delivery_of(observed, top, present)
    if delivery.refusal is not None or delivery.waiting is not None:
        return _last(observed, top, SpecDecision(delivery=delivery, refusal=delivery.refusal))
    adapters = adapters_of(observed, top, present)
    if hub_draft(spec):
        return _last(observed, top, SpecDecision(delivery=awaiting_draft(delivery, adapters)))
    brought = (*delivery.manifests, *adapters.manifests)
    has_place = len(conflicts) == len(observed.name_conflicts)
    planned = PlannedSpec(spec, adapters, brought, record=record if has_place else None)
    return SpecDecision(planned, delivery, is_paused=spec.paused)


def _last(observed: ServiceObserved, top: Owner, decision: SpecDecision) -> SpecDecision:
    """`decision` with what was carried out last, with the numbers of the present spec."""
    service, children = observed.service, observed.children
    decision = replace(decision, is_paused=bool((service.get("spec") or {}).get("paused")))
    last = last_applied(service, children)
    if last is None:
        return decision
    spec = pinned_at(last, service, last.model.revision)
    if hub_draft(spec) or any(contradictions(observed, spec)):
        return decision
    brought, adapters = kept_delivery(observed, top, last, decision.delivery)
    stays = _downloads(children, decision.delivery)
    return replace(decision, planned=PlannedSpec(spec, adapters, brought, stays))


def _record(observed: ServiceObserved, top: Owner) -> Manifest:
    """Of the present spec, and of the last one in another mode while its pools are there."""
    present, name = spec_with_commit(observed.service), observed.service["metadata"]["name"]
    last = spec_in_record(name, observed.children)
    former = spec_in_record(name, observed.children, FORMER_MODE_FILE)
    if last and mode_of(last) != mode_of(present):
        former = last
    roles = roles_of(mode_of(present))
    pools = of_kind(observed.children, ENGINE_POOL)
    stays = any(pool["spec"]["role"] not in roles for pool in pools)
    return applied_record(top, present, former if stays else {})


def _downloads(children: Children, delivery: Delivery) -> frozenset[Identity]:
    """Downloads that continue while the present spec is not carried out, so that a typo ends no
    download."""
    return frozenset(
        identity(child)
        for child in children
        if (child["metadata"].get("labels") or {}).get(labels.ROLE) == FETCH_ROLE
        and not (delivery.manifests and child["kind"] == JOB.kind)
    )


def _name_taken(conflicts: tuple[Manifest, ...]) -> Refusal:
    names = ", ".join(f"{kind} {name}" for kind, name in map(identity, conflicts))
    return Refusal(
        reasons.NAME_TAKEN,
        "metadata.name",
        f"metadata.name: {names} exists and is not this service's; choose another name for the "
        "service, or delete it",
    )
