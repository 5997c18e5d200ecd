"""The types of the conditions in a status, and what one condition says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

READY: Final = "Ready"
"""Whether the service serves: every pool has an engine that answers, of any revision, and so does a
router; or no engine is asked for."""
UPDATED: Final = "Updated"
"""Whether everything is as the spec asks for. Says why not, also where Ready is False."""
PROGRESSING: Final = "Progressing"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
MODEL_AVAILABLE: Final = "ModelAvailable"
ADAPTERS_LOADED: Final = "AdaptersLoaded"
"""Condition of services and pools with adapters only."""
ROUTER_READY: Final = "RouterReady"
SCALING_ACTIVE: Final = "ScalingActive"
ACCELERATOR_VERIFIED: Final = "AcceleratorVerified"
UPGRADE_AVAILABLE: Final = "UpgradeAvailable"
PRIORITIES_COUNT: Final = "PrioritiesCount"
"""Condition only of services whose tenants have priorities."""
OPTIONAL_KINDS_APPLIED: Final = "OptionalKindsApplied"
"""Condition only of services with objects of kinds that a cluster may lack. Refusals of these
objects are in no other condition, because the service works without them."""
NETWORK_ISOLATED: Final = "NetworkIsolated"
"""Whether the cluster enforces the service's NetworkPolicies. It affects no other condition,
because the service works anyway."""
ROUTE_ACCEPTED: Final = "RouteAccepted"
"""Condition only of services with a route: whether its Gateways lead to the service."""
INFERENCE_POOL_ACCEPTED: Final = "InferencePoolAccepted"
"""Condition only of services with an InferencePool: whether a Gateway sends requests to the routers
by it."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check: the content of a condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str

    @property
    def is_true(self) -> bool:
        return self.status == "True"
