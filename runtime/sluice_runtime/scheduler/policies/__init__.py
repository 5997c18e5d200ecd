"""The order in which waiting requests are offered to admission.

`orders` is a table of pure functions, and what they look at; `ageing` bounds them, so that no
request and no tenant starves. A policy only orders. What fits is decided by `admission`, which
stops at the first request that does not, so the head of the order cannot starve. Each costs
O(n log n) at most over the waiting requests, and nothing in a step that has no budget for prompts.
"""

from sluice_runtime.scheduler.policies.ageing import AdmissionOrder, admission_order
from sluice_runtime.scheduler.policies.orders import (
    ALIASES,
    POLICIES,
    PREEMPTING,
    Policy,
    PolicyContext,
    Turn,
)

__all__ = [
    "ALIASES",
    "POLICIES",
    "PREEMPTING",
    "AdmissionOrder",
    "Policy",
    "PolicyContext",
    "Turn",
    "admission_order",
]
