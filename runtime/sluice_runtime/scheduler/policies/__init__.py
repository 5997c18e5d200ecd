"""The order in which waiting requests are offered to admission.

`orders` is a table of pure functions and their inputs; `ageing` limits them, so that no request or
tenant starves. A policy only orders. `admission` decides what fits, and stops at the first request
that does not, so the head of the order cannot starve. A policy costs at most O(n log n) for n
waiting requests, and nothing in a step without a budget for prompts.
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
