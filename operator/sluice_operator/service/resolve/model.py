"""The model of a service and its adapters in its plan: what their delivery needs to know. Pure."""

from __future__ import annotations

from dataclasses import replace

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.plan import identity
from sluice_operator.delivery.adapters import AdapterDelivery, plan_adapters
from sluice_operator.delivery.delivery import (
    Delivery,
    DeliveryObserved,
    Fetcher,
    hub_access,
    plan_delivery,
)
from sluice_operator.delivery.resolved_model import is_fetched, with_draft
from sluice_operator.kube.kinds import PERSISTENT_VOLUME_CLAIM, Manifest, of_kind
from sluice_operator.manifests.metadata import Owner
from sluice_operator.manifests.placement import placement_of
from sluice_operator.service.observe import Images, Installation, ServiceObserved
from sluice_operator.service.resolve.release_decisions import kept_certificates, kept_ports


def delivery_of(observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec) -> Delivery:
    """How far the model, as the spec has it, is on its way."""
    return plan_delivery(
        _delivery_observed(observed), top, spec.model, _fetcher_for(observed, spec)
    )


def kept_delivery(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec, coming: Delivery
) -> tuple[tuple[Manifest, ...], AdapterDelivery]:
    """What brings models while `spec`, whose model engines have, is kept beside the one that is
    `coming`; and how far its adapters are. A claim that is there may have grown, and stays."""
    adapters = adapters_of(observed, top, spec)
    own = (*hub_access(top, spec.model, _fetcher_for(observed, spec)), *adapters.manifests)
    claims = set(map(identity, of_kind(observed.children, PERSISTENT_VOLUME_CLAIM)))
    brought = own if is_fetched(spec.model) else adapters.manifests
    kept = (manifest for manifest in brought if identity(manifest) not in claims)
    return (*coming.manifests, *kept), adapters


def adapters_of(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec
) -> AdapterDelivery:
    """How far adapters and a draft model of a hub, as the spec has them, are on their way."""
    return plan_adapters(
        _delivery_observed(observed), top, with_draft(spec), _fetcher_for(observed, spec)
    )


def _delivery_observed(observed: ServiceObserved) -> DeliveryObserved:
    return DeliveryObserved(
        observed.service,
        observed.children,
        observed.fetchers,
        observed.progress,
        observed.refused_jobs,
    )


def _fetcher_for(observed: ServiceObserved, spec: InferenceServiceSpec) -> Fetcher:
    """What Jobs fetch with, which are placed as the pools of `spec` are."""
    placement = placement_of(map(spec.pool, spec.roles))
    service, children = observed.service["metadata"]["name"], observed.children
    return replace(
        fetcher_of(observed.images, observed.installation),
        placement=placement,
        kept_ports=kept_ports(children),
        kept_certificates=kept_certificates(children, service),
    )


def fetcher_of(images: Images, installation: Installation) -> Fetcher:
    """What models are fetched with."""
    return Fetcher(images.fetch, installation.hub, installation.operator_namespace)
