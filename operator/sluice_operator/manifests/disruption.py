"""PodDisruptionBudgets: drains evict one pod at a time, and do not wait for unready ones."""

from __future__ import annotations

from sluice_operator.kube.kinds import POD_DISRUPTION_BUDGET, Manifest
from sluice_operator.manifests.metadata import Owner, selector_labels


def disruption_budget(owner: Owner, name: str, component: str, role: str) -> Manifest:
    """The budget of one role's pods, over all revisions."""
    return owner.child(POD_DISRUPTION_BUDGET, name, component, role) | {
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(owner.service, role)},
        }
    }
