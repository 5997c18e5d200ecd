"""The model of a service in its plan: what its delivery needs to know. Pure."""

from __future__ import annotations

from sluice_operator.api.engine import ModelSpec
from sluice_operator.manifests.metadata import Owner
from sluice_operator.model.delivery import Delivery, Fetcher, Seen, plan_delivery
from sluice_operator.service.observe import ServiceObserved


def fetcher_of(observed: ServiceObserved) -> Fetcher:
    """What models are fetched with."""
    return Fetcher(observed.images.fetch, observed.installation.hub_endpoint)


def delivery_of(observed: ServiceObserved, top: Owner, model: ModelSpec) -> Delivery:
    """How far the model, as the spec has it, is on its way."""
    seen = Seen(observed.service, observed.children, observed.fetchers)
    return plan_delivery(seen, top, model, fetcher_of(observed))
