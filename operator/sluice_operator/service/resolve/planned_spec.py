"""Which spec a service is planned by: the present one, or the last one carried out while the
present one is refused, or waits for its model or the end of a pause.

Pure. The delivery of model and adapters is decided here too, because engines can only be made of
what has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import FETCH_ROLE

from sluice_operator.api.canonical import canonical
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.plan import Identity, identity
from sluice_operator.conditions import reasons
from sluice_operator.delivery.adapters import AdapterDelivery, awaiting_draft
from sluice_operator.delivery.delivery import NO_DELIVERY, Delivery
from sluice_operator.delivery.resolved_model import (
    hub_draft,
    pinned,
    pinned_at,
)
from sluice_operator.kube.kinds import JOB, Manifest
from sluice_operator.manifests.metadata import Owner
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.resolve.last_applied import with_numbers_of
from sluice_operator.service.resolve.model import adapters_of, delivery_of, kept_delivery
from sluice_operator.service.resolve.resolved_service import ResolvedService, resolve
from sluice_operator.service.revisions.revision import as_written, revisions_of
from sluice_operator.validation.errors import Refusal, invalid, joined


@dataclass(frozen=True)
class PlannedSpec:
    """A resolved spec, and the objects that it needs in addition to the children that serve."""

    resolved: ResolvedService
    adapters: AdapterDelivery
    brought: tuple[Manifest, ...]
    """Manifests that bring the model and adapters of the planned spec, and the model that the
    present spec waits for."""
    keep: frozenset[Identity] = frozenset()
    """Children that nothing asks for, but that are not pruned."""
    written: Manifest | None = None
    """The present spec with the commit of its model, if it is the planned one; else None."""

    @property
    def spec(self) -> InferenceServiceSpec:
        return self.resolved.spec


@dataclass(frozen=True)
class SpecDecision:
    """Planned spec, and why it is not the present one."""

    planned: PlannedSpec | None = None
    """The planned spec; None: the present spec is not carried out, and no former one is known."""
    delivery: Delivery = NO_DELIVERY
    """How far the model of the present spec is on its way."""
    refusal: Refusal | None = None
    """Why the present spec is refused; None: it is not."""
    is_paused: bool = False
    is_kept_waiting: bool = False
    """Whether the present spec asks for other pods than those that run, while it is paused."""


def decide_spec(observed: ServiceObserved, top: Owner) -> SpecDecision:
    """The present spec where it is valid, its model is there and no pause keeps it; else the last
    one."""
    service = observed.service
    try:
        present = canonical(parse(InferenceServiceSpec, service.get("spec") or {}, "spec"))
    except InvalidSpecError as error:
        refusals = invalid(error, lambda spec: resolve(observed, top, spec).refusals)
        return _last(observed, top, SpecDecision(refusal=joined(refusals)))
    spec = pinned(present, service)
    resolution = resolve(observed, top, spec)
    if resolution.refusals:
        return _last(observed, top, SpecDecision(refusal=joined(resolution.refusals)))
    if observed.name_conflicts and not spec.paused:
        refusal = _name_taken(observed.name_conflicts)
        return _last(observed, top, SpecDecision(refusal=refusal))
    delivery = delivery_of(observed, top, present, resolution.revisions)
    if delivery.refusal is not None or delivery.waiting is not None:
        return _last(observed, top, SpecDecision(delivery=delivery, refusal=delivery.refusal))
    adapters = adapters_of(observed, top, present, resolution.revisions)
    if hub_draft(spec):
        return _last(observed, top, SpecDecision(delivery=awaiting_draft(delivery, adapters)))
    brought = (*delivery.manifests, *adapters.manifests)
    written = as_written(service)
    planned = PlannedSpec(resolution.resolved(), adapters, brought, written=written)
    decision = SpecDecision(planned, delivery, is_paused=spec.paused)
    running = next(resolution.revisions.carried_out, None)
    if spec.paused and running and running.name != planned.resolved.revision.name:
        # What runs may have a canary.
        return _last(observed, top, replace(decision, is_kept_waiting=True))
    return decision


def _last(observed: ServiceObserved, top: Owner, decision: SpecDecision) -> SpecDecision:
    """`decision` with the spec that was carried out last, with the numbers of the present spec."""
    service, children = observed.service, observed.children
    decision = replace(decision, is_paused=bool((service.get("spec") or {}).get("paused")))
    revisions = revisions_of(children)
    revision = next(revisions.carried_out, None)
    last = revision and with_numbers_of(service.get("spec") or {}, revision)
    if not last:
        return decision
    spec = pinned_at(last, service, last.model.revision)
    resolution = resolve(observed, top, spec)
    if hub_draft(spec) or resolution.contradictions:
        return decision
    brought, adapters = kept_delivery(observed, top, last, decision.delivery, revisions)
    keep = _downloads(children, decision.delivery)
    return replace(decision, planned=PlannedSpec(resolution.resolved(), adapters, brought, keep))


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
