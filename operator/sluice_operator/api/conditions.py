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
"""Only of a service, and of pools, with adapters."""
ROUTER_READY: Final = "RouterReady"
SCALING_ACTIVE: Final = "ScalingActive"
ACCELERATOR_VERIFIED: Final = "AcceleratorVerified"
UPGRADE_AVAILABLE: Final = "UpgradeAvailable"
PRIORITIES_COUNT: Final = "PrioritiesCount"
"""Only of a service whose tenants have priorities."""
OPTIONAL_KINDS_APPLIED: Final = "OptionalKindsApplied"
"""Only for a service with objects of kinds that a cluster may lack. Refusals of these objects are
in no other condition, because the service works without them."""
NETWORK_ISOLATED: Final = "NetworkIsolated"
"""The cluster enforces the service's NetworkPolicies. In no other condition: it serves anyway."""
ROUTE_ACCEPTED: Final = "RouteAccepted"
"""Only of a service with a route: its Gateways lead to it."""
INFERENCE_POOL_ACCEPTED: Final = "InferencePoolAccepted"
"""Only of a service with an InferencePool: a Gateway sends requests to its routers by it."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check: the content of a condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str

    @property
    def is_true(self) -> bool:
        return self.status == "True"
