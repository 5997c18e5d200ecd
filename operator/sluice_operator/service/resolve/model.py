"""The model of a service and its adapters in its plan: what their delivery needs to know. Pure."""

from __future__ import annotations

from dataclasses import replace

from sluice_operator.api.pool import HubNetwork, ModelFetch
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
from sluice_operator.kube.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, Manifest, of_kind
from sluice_operator.manifests.hub import CA_FILE, ca_name, hub_ports
from sluice_operator.manifests.metadata import Owner
from sluice_operator.manifests.placement import placement_of
from sluice_operator.service.observe import Images, Installation, ServiceObserved
from sluice_operator.service.revisions.revision import Revisions


def delivery_of(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec, revisions: Revisions
) -> Delivery:
    """How far the model, as the spec has it, is on its way."""
    fetcher = _fetcher_for(observed, spec, revisions)
    return plan_delivery(_delivery_observed(observed), top, spec.model, fetcher)


def kept_delivery(
    observed: ServiceObserved,
    top: Owner,
    spec: InferenceServiceSpec,
    coming: Delivery,
    revisions: Revisions,
) -> tuple[tuple[Manifest, ...], AdapterDelivery]:
    """Manifests that bring models, and how far the adapters of `spec` are. Engines have the model
    of `spec`, which is kept until the `coming` model arrives. An existing claim is left as it is,
    because it may have grown."""
    adapters = adapters_of(observed, top, spec, revisions)
    fetcher = _fetcher_for(observed, spec, revisions)
    own = (*hub_access(top, spec.model, fetcher), *adapters.manifests)
    claims = set(map(identity, of_kind(observed.children, PERSISTENT_VOLUME_CLAIM)))
    brought = own if is_fetched(spec.model) else adapters.manifests
    kept = (manifest for manifest in brought if identity(manifest) not in claims)
    return (*coming.manifests, *kept), adapters


def adapters_of(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec, revisions: Revisions
) -> AdapterDelivery:
    """How far adapters and a draft model of a hub, as the spec has them, are on their way."""
    fetcher = _fetcher_for(observed, spec, revisions)
    return plan_adapters(_delivery_observed(observed), top, with_draft(spec), fetcher)


def _delivery_observed(observed: ServiceObserved) -> DeliveryObserved:
    return DeliveryObserved(
        observed.service,
        observed.children,
        observed.fetchers,
        observed.progress,
        observed.refused_jobs,
    )


def _fetcher_for(
    observed: ServiceObserved, spec: InferenceServiceSpec, revisions: Revisions
) -> Fetcher:
    """Fetcher of Jobs, which are placed like the pools of `spec`."""
    placement = placement_of(map(spec.pool, spec.roles))
    kept = [fetch for pool in revisions.in_use if (fetch := pool.fetch)]
    trusts = any(fetch.network and fetch.network.ca_config_map for fetch in kept)
    return replace(
        fetcher_of(observed.images, observed.installation),
        placement=placement,
        kept_ports=frozenset(port for fetch in kept for port in _ports(fetch)),
        kept_certificates=_certificates(observed) if trusts else "",
    )


def _ports(fetch: ModelFetch) -> frozenset[int]:
    """Ports at which engines that download themselves reach their hub, or a proxy."""
    network = fetch.network or HubNetwork()
    return hub_ports(fetch.endpoint, network.http_proxy, network.https_proxy)


def _certificates(observed: ServiceObserved) -> str:
    """The certificates in the service's ConfigMap for them."""
    name = ca_name(observed.service["metadata"]["name"])
    ca_maps = (m for m in of_kind(observed.children, CONFIG_MAP) if m["metadata"]["name"] == name)
    return next(((item.get("data") or {}).get(CA_FILE, "") for item in ca_maps), "")


def fetcher_of(images: Images, installation: Installation) -> Fetcher:
    """Fetcher by the operator's settings."""
    return Fetcher(images.fetch, installation.hub, installation.operator_namespace)
