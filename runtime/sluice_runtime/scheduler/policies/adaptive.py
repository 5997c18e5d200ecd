"""The policy that follows the load.

| load | order | why |
|---|---|---|
| under 0.3 | fcfs | whoever waits is admitted in this step or the next: any other order is work |
| 0.3 to 0.8 | priority if the waiting differ in it, else hrrn | time to first token is at stake |
| over 0.8 | lpm with a prefix cache and a match, else sjf | work saved is what shortens the queue |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sluice_runtime.scheduler.policies.by_prefix import longest_prefix_match
from sluice_runtime.scheduler.policies.by_size import (
    highest_response_ratio_next,
    shortest_prefill_first,
)
from sluice_runtime.scheduler.policies.context import MOST_LOOKED_UP, Policy, PolicyContext
from sluice_runtime.scheduler.policies.simple import (
    first_come_first_served,
    highest_priority_first,
)
from sluice_runtime.scheduler.request import Request

LIGHT: Final = 0.3
HEAVY: Final = 0.8


def adaptive(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good when the load is not known: fcfs while it is light, throughput first while it is heavy,
    priority or response ratio between."""
    return policy_for(waiting, context)(waiting, context)


def policy_for(waiting: Sequence[Request], context: PolicyContext) -> Policy:
    """The policy that the load asks for."""
    if context.load < LIGHT:
        return first_come_first_served
    if context.load > HEAVY:
        cached = context.matched_tokens is not None and len(waiting) <= MOST_LOOKED_UP
        return longest_prefix_match if cached else shortest_prefill_first
    if len({request.priority for request in waiting}) > 1:
        return highest_priority_first
    return highest_response_ratio_next
