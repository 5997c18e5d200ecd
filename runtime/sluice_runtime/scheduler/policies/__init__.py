"""The order in which waiting requests are offered to admission: a registry of pure functions.

A policy only orders. What fits is decided by `admission`, which stops at the first request that
does not, so the head of the order cannot starve; `ageing` sees to it that everyone gets there.
Each costs O(n log n) at most over the waiting requests, and nothing in a step that has no room.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_runtime.scheduler.policies.adaptive import adaptive
from sluice_runtime.scheduler.policies.ageing import AdmissionOrder
from sluice_runtime.scheduler.policies.by_deadline import least_slack_first
from sluice_runtime.scheduler.policies.by_key import round_robin, running_keys_first
from sluice_runtime.scheduler.policies.by_prefix import depth_first_by_weight, longest_prefix_match
from sluice_runtime.scheduler.policies.by_size import (
    highest_response_ratio_next,
    longest_output_first,
    shortest_prefill_first,
    shortest_remaining_first,
)
from sluice_runtime.scheduler.policies.context import Policy, PolicyContext, Turn
from sluice_runtime.scheduler.policies.simple import (
    first_come_first_served,
    highest_priority_first,
    shuffled,
)

__all__ = [
    "POLICIES",
    "PREEMPTING",
    "AdmissionOrder",
    "Policy",
    "PolicyContext",
    "Turn",
    "admission_order",
]

POLICIES: Final[Mapping[str, Policy]] = {
    "fcfs": first_come_first_served,
    "lpm": longest_prefix_match,
    "dfs-weight": depth_first_by_weight,
    "lof": longest_output_first,
    "sjf": shortest_prefill_first,
    "srtf": shortest_remaining_first,
    "hrrn": highest_response_ratio_next,
    "round-robin": round_robin,
    "random": shuffled,
    "priority": highest_priority_first,
    "routing-key": running_keys_first,
    "adaptive": adaptive,
    "slack": least_slack_first,
}
"""By the name that `schedulingPolicy` has for it; each without a bound on waiting."""

PREEMPTING: Final = frozenset({"priority"})
"""Policies under which a waiting request may send running ones back, and places those itself."""


def admission_order(policy: str, seed: int = 0) -> AdmissionOrder:
    """A policy with bounded waiting: what an engine uses."""
    return AdmissionOrder(POLICIES[policy], seed, resumes_first=policy not in PREEMPTING)
